-- What was asked of tasks, in slots of five minutes since 1970 (UTC): what the same time of later days is compared with. Whoever saw most of a
-- slot has the last word, so it may be said by many and again.

CREATE TABLE asked_slots (
    slot BIGINT NOT NULL PRIMARY KEY,
    -- For how long somebody saw all that was asked. A task without a bin was asked nothing then.
    seen_s BIGINT NOT NULL
);
CREATE TABLE asked_bins (
    slot BIGINT NOT NULL,
    -- Refers to nothing on purpose: it goes with its slot.
    task BIGINT NOT NULL,
    peak_per_1000_s BIGINT NOT NULL,
    queries BIGINT NOT NULL,
    PRIMARY KEY (slot, task)
);
CREATE INDEX asked_bins_of_task ON asked_bins (task, slot);
INSERT INTO counters (name, value) VALUES ('asked', 0);

-- Whether that counts for a task before it is asked for, in the notation of `--ahead`.
ALTER TABLE tasks ADD COLUMN ahead TEXT NOT NULL DEFAULT 'on';
