-- Machines that are rented: what is wanted is written down before a provider is asked for it.

CREATE TABLE machines (
    id BIGINT NOT NULL PRIMARY KEY,
    pool TEXT NOT NULL,
    name TEXT NOT NULL UNIQUE,
    -- What its provider calls it, once that is known.
    instance TEXT,
    state TEXT NOT NULL,
    price BIGINT NOT NULL,
    asked_us BIGINT NOT NULL,
    since_us BIGINT NOT NULL,
    joined_us BIGINT
);
CREATE INDEX machines_by_state ON machines (state);

-- What became of them, and why. Rows are added, and the oldest forgotten; they outlive the machines' own rows.
CREATE TABLE machine_changes (
    seq BIGINT NOT NULL PRIMARY KEY,
    machine BIGINT NOT NULL,
    pool TEXT NOT NULL,
    name TEXT NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    why TEXT NOT NULL,
    who TEXT NOT NULL,
    at_us BIGINT NOT NULL
);
CREATE INDEX machine_changes_of_machine ON machine_changes (machine, seq);

-- How pools stand, as the scheduler that leads last saw them: for people, in JSON.
CREATE TABLE pools (
    name TEXT NOT NULL PRIMARY KEY,
    body TEXT NOT NULL,
    at_us BIGINT NOT NULL
);

INSERT INTO counters (name, value) VALUES ('machines', 0), ('machine_changes', 0);
