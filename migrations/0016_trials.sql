-- New versions that answer a share of their task's queries until it is known how they do. Of each task one at most is running.

CREATE TABLE trials (
    id BIGINT NOT NULL PRIMARY KEY,
    -- These refer to nothing on purpose: a trial outlives its versions and its task.
    task BIGINT NOT NULL,
    name TEXT NOT NULL,
    candidate BIGINT NOT NULL,
    version BIGINT NOT NULL,
    -- The default version that it is compared with.
    against BIGINT NOT NULL,
    against_version BIGINT NOT NULL,
    share_ppm BIGINT NOT NULL,
    -- Whether the version is only asked copies.
    shadow BIGINT NOT NULL,
    lasts_us BIGINT NOT NULL,
    promote_when_good BIGINT NOT NULL,
    forced BIGINT NOT NULL,
    began_by TEXT NOT NULL,
    began_us BIGINT NOT NULL,
    state TEXT NOT NULL,
    -- How it ended: why, by what figures (JSON), who says so, when.
    cause TEXT,
    figures TEXT,
    ended_by TEXT,
    ended_us BIGINT
);
CREATE INDEX trials_of_task ON trials (task, id);
CREATE INDEX trials_by_state ON trials (state);

INSERT INTO counters (name, value) VALUES ('trials', 0);
