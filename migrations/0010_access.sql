-- Who may ask, for how much, and what was changed by whom.

-- Keys of applications. Of the secret there is only its SHA-256, in hexadecimal; `prefix` is what people know it by. A key that was
-- rotated says which one took its place. Rows are forgotten only once they have ended and many came after them.
CREATE TABLE api_keys (
    id BIGINT NOT NULL PRIMARY KEY,
    app BIGINT NOT NULL REFERENCES apps (id),
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    scopes TEXT NOT NULL,
    created_us BIGINT NOT NULL,
    expires_us BIGINT,
    revoked_us BIGINT,
    successor BIGINT
);
CREATE INDEX api_keys_of_app ON api_keys (app);

-- What a tenant and an application may use: JSON, empty where nothing is bounded.
ALTER TABLE tenants ADD COLUMN quota TEXT NOT NULL DEFAULT '{}';
ALTER TABLE apps ADD COLUMN quota TEXT NOT NULL DEFAULT '{}';

-- Who besides its owner may be answered by the models of a name, later versions included: a tenant, or everybody (0).
CREATE TABLE model_grants (
    task BIGINT NOT NULL,
    name TEXT NOT NULL,
    tenant BIGINT NOT NULL,
    PRIMARY KEY (task, name, tenant)
);

-- What a tenant uploaded lately: it may register that, and it counts in its quota, until a model is made of it or its time is over.
CREATE TABLE uploads (
    tenant BIGINT NOT NULL,
    sha256 TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    at_us BIGINT NOT NULL,
    PRIMARY KEY (tenant, sha256)
);

-- What was asked for that changes something, and what came of it. Rows are added, and the oldest forgotten.
CREATE TABLE audit (
    seq BIGINT NOT NULL PRIMARY KEY,
    at_us BIGINT NOT NULL,
    tenant BIGINT NOT NULL,
    key_id BIGINT,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    status BIGINT NOT NULL
);
CREATE INDEX audit_of_tenant ON audit (tenant, seq);

-- The keys' number also says whether there ever was one: from the first on a key is needed, also when all have ended.
INSERT INTO counters (name, value) VALUES ('tenants', 1), ('apps', 1), ('api_keys', 0), ('audit', 0);
