-- What live traffic says of what was measured: profiles that are off for too long, and how right answers were.

-- A row is there while a node says that the variant's profile on its device class had better be measured again.
CREATE TABLE stale_profiles (
    variant BIGINT NOT NULL REFERENCES variants (id),
    device_class TEXT NOT NULL,
    node TEXT NOT NULL,
    ratio_ppm BIGINT NOT NULL,
    since_us BIGINT NOT NULL,
    PRIMARY KEY (variant, device_class)
);

-- One verdict for each query, as long as one may be given for it.
CREATE TABLE feedback (
    query TEXT NOT NULL PRIMARY KEY,
    variant BIGINT NOT NULL REFERENCES variants (id),
    answered_us BIGINT NOT NULL,
    correct BIGINT NOT NULL
);
CREATE INDEX feedback_by_time ON feedback (answered_us);
CREATE INDEX feedback_by_variant ON feedback (variant);

-- What they come to. `flagged_ppm`: how accurate it was when it was found to be less so than measured.
CREATE TABLE live_accuracies (
    variant BIGINT NOT NULL PRIMARY KEY REFERENCES variants (id),
    correct BIGINT NOT NULL,
    wrong BIGINT NOT NULL,
    flagged_ppm BIGINT
);

-- Whether that counts for a task's floors.
ALTER TABLE tasks ADD COLUMN live_accuracy TEXT NOT NULL DEFAULT 'shown';

INSERT INTO counters (name, value) VALUES ('feedback', 0);
