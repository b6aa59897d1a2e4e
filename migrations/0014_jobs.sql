-- Offline jobs: many inputs of one task, answered when nothing else has to be. BYTEA is a word of Postgres; SQLite keeps bytes as they
-- come, whatever their column is said to be.

CREATE TABLE jobs (
    id BIGINT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    tenant BIGINT NOT NULL REFERENCES tenants (id),
    app BIGINT NOT NULL REFERENCES apps (id),
    -- Refers to nothing on purpose: a job outlives its task, and has its name.
    task BIGINT NOT NULL,
    task_name TEXT NOT NULL,
    goals TEXT NOT NULL,
    state TEXT NOT NULL,
    why TEXT,
    inputs BIGINT NOT NULL,
    received BIGINT NOT NULL,
    done BIGINT NOT NULL,
    failed BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    -- Of its outputs.
    kept BIGINT NOT NULL,
    device_us BIGINT NOT NULL,
    cost BIGINT NOT NULL,
    estimate BIGINT,
    deadline_us BIGINT,
    made_us BIGINT NOT NULL,
    started_us BIGINT,
    ended_us BIGINT
);
CREATE INDEX jobs_of_tenant ON jobs (tenant, id);
CREATE INDEX jobs_by_state ON jobs (state);

-- Inputs that have not ended, each until `until_us` with whoever took it. Whoever removes a row has ended its input, so each ends
-- once; and whoever looks for some that wait passes none of those that ended, however many they are. The rows of these three tables are
-- written and removed by those who hold the row of their job, and therefore refer to none.
CREATE TABLE job_inputs (
    job BIGINT NOT NULL,
    place BIGINT NOT NULL,
    name TEXT NOT NULL,
    media TEXT,
    bytes BIGINT NOT NULL,
    holder TEXT,
    until_us BIGINT NOT NULL,
    PRIMARY KEY (job, place)
);

-- Apart from the inputs, so that taking one does not write its body again.
CREATE TABLE job_bodies (
    job BIGINT NOT NULL,
    place BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (job, place)
);

-- How inputs ended: with an answer, or with a reason why there is none.
CREATE TABLE job_outputs (
    job BIGINT NOT NULL,
    place BIGINT NOT NULL,
    name TEXT NOT NULL,
    ended_us BIGINT NOT NULL,
    variant BIGINT,
    variant_name TEXT,
    device_us BIGINT,
    cost BIGINT,
    reason TEXT,
    message TEXT,
    -- Of its answer.
    bytes BIGINT NOT NULL,
    answer BYTEA,
    PRIMARY KEY (job, place)
);

INSERT INTO counters (name, value) VALUES ('jobs', 0), ('job_inputs', 0);
