-- What happened, in one order, for whoever wants to know why the platform is as it is: states of replicas, plans, nodes that come
-- and go. Rows are added, and the oldest forgotten.
CREATE TABLE events (
    seq BIGINT NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    node BIGINT,
    variant BIGINT,
    what TEXT NOT NULL,
    cause TEXT NOT NULL,
    who TEXT NOT NULL,
    at_us BIGINT NOT NULL
);

INSERT INTO counters (name, value) VALUES ('events', 0);
