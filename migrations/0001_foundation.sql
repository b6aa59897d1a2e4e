-- What modelless keeps, first form. This text runs on SQLite and on Postgres alike: whole numbers are BIGINT,
-- documents are JSON in TEXT, times are microseconds since 1970 and come from the caller.

-- Numbers that only grow. Taking one locks its row until the transaction ends, so a row here is also the lock
-- of what it counts: writers of one kind stand in line, and ids and versions appear in the order of commits.
CREATE TABLE counters (
    name TEXT NOT NULL PRIMARY KEY,
    value BIGINT NOT NULL
);
INSERT INTO counters (name, value) VALUES
    ('catalog', 0), ('spaces', 0), ('tasks', 0), ('models', 0), ('variants', 0),
    ('nodes', 0), ('replicas', 0), ('transitions', 0), ('plans', 0);

CREATE TABLE tenants (
    id BIGINT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);
INSERT INTO tenants (id, name) VALUES (1, 'default');

CREATE TABLE apps (
    id BIGINT NOT NULL PRIMARY KEY,
    tenant BIGINT NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    UNIQUE (tenant, name)
);
INSERT INTO apps (id, tenant, name) VALUES (1, 1, 'default');

CREATE TABLE spaces (
    id BIGINT NOT NULL PRIMARY KEY,
    tenant BIGINT NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    dimension BIGINT,
    hash TEXT,
    UNIQUE (tenant, name)
);

CREATE TABLE tasks (
    id BIGINT NOT NULL PRIMARY KEY,
    tenant BIGINT NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    metric TEXT NOT NULL,
    labels TEXT NOT NULL,
    inputs TEXT NOT NULL,
    outputs TEXT NOT NULL,
    default_space BIGINT NOT NULL REFERENCES spaces (id),
    defaults TEXT NOT NULL,
    description TEXT NOT NULL,
    next_ordinal BIGINT NOT NULL,
    UNIQUE (tenant, name)
);

CREATE TABLE models (
    id BIGINT NOT NULL PRIMARY KEY,
    task BIGINT NOT NULL REFERENCES tasks (id),
    tenant BIGINT NOT NULL REFERENCES tenants (id),
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    architecture TEXT NOT NULL,
    licence TEXT NOT NULL,
    space BIGINT NOT NULL REFERENCES spaces (id),
    adapter TEXT NOT NULL,
    UNIQUE (task, tenant, name, version)
);

CREATE TABLE variants (
    id BIGINT NOT NULL PRIMARY KEY,
    model BIGINT NOT NULL REFERENCES models (id),
    task BIGINT NOT NULL REFERENCES tasks (id),
    ordinal BIGINT NOT NULL,
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    artefact TEXT NOT NULL,
    artefact_bytes BIGINT NOT NULL,
    UNIQUE (task, ordinal),
    UNIQUE (task, name)
);
CREATE INDEX variants_of_model ON variants (model);

CREATE TABLE profiles (
    variant BIGINT NOT NULL REFERENCES variants (id),
    device_class TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (variant, device_class)
);

CREATE TABLE nodes (
    id BIGINT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    pool TEXT NOT NULL,
    zone TEXT NOT NULL,
    device_class TEXT NOT NULL,
    lanes BIGINT NOT NULL,
    memory BIGINT NOT NULL,
    price BIGINT NOT NULL,
    state TEXT NOT NULL,
    last_seen BIGINT NOT NULL
);

-- `variant` refers to nothing on purpose: a variant removed by force stays resident until its owner has let
-- go of it, and until then its row says so.
CREATE TABLE replicas (
    id BIGINT NOT NULL PRIMARY KEY,
    variant BIGINT NOT NULL,
    node BIGINT NOT NULL REFERENCES nodes (id),
    device BIGINT NOT NULL,
    state TEXT NOT NULL
);
CREATE INDEX replicas_of_variant ON replicas (variant);
CREATE INDEX replicas_of_node ON replicas (node);

-- History: rows are added and, when old, forgotten; never changed. They outlive what they speak of.
CREATE TABLE transitions (
    seq BIGINT NOT NULL PRIMARY KEY,
    replica BIGINT NOT NULL,
    variant BIGINT NOT NULL,
    node BIGINT NOT NULL,
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    cause TEXT NOT NULL,
    who TEXT NOT NULL,
    at_us BIGINT NOT NULL
);
CREATE INDEX transitions_of_replica ON transitions (replica, seq);
CREATE INDEX transitions_by_time ON transitions (at_us);

CREATE TABLE plans (
    id BIGINT NOT NULL PRIMARY KEY,
    parent BIGINT UNIQUE,
    body TEXT NOT NULL,
    at_us BIGINT NOT NULL
);

-- Secrets in hexadecimal.
CREATE TABLE keys (
    name TEXT NOT NULL PRIMARY KEY,
    secret TEXT NOT NULL
);
