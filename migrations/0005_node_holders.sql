-- Which process is a node just now. `beat` moves while it lives; one that does not move is a process that is gone.

CREATE TABLE node_holders (
    name TEXT NOT NULL PRIMARY KEY,
    instance BIGINT NOT NULL,
    beat BIGINT NOT NULL,
    place TEXT NOT NULL
);
