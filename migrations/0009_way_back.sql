-- How a variant that live traffic spoke against comes back.

-- Verdicts are counted in rounds: a new round begins when what they are held against was measured anew, when the model was
-- promoted, or when an operator says so. A verdict that changes one of an earlier round is kept and not counted.
ALTER TABLE live_accuracies ADD COLUMN round BIGINT NOT NULL DEFAULT 0;
ALTER TABLE feedback ADD COLUMN round BIGINT NOT NULL DEFAULT 0;

-- What was said of variants' live accuracy, when and why. Rows are added, and the oldest forgotten. `at_us` is empty where
-- nobody told the time.
CREATE TABLE flag_changes (
    seq BIGINT NOT NULL PRIMARY KEY,
    variant BIGINT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    who TEXT NOT NULL,
    at_us BIGINT,
    correct BIGINT NOT NULL,
    wrong BIGINT NOT NULL,
    value_ppm BIGINT
);
CREATE INDEX flag_changes_of_variant ON flag_changes (variant, seq);

-- Every node marks for itself, so that none takes back what another one still says.
CREATE TABLE stale_marks (
    variant BIGINT NOT NULL REFERENCES variants (id),
    device_class TEXT NOT NULL,
    node TEXT NOT NULL,
    ratio_ppm BIGINT NOT NULL,
    since_us BIGINT NOT NULL,
    PRIMARY KEY (variant, device_class, node)
);
INSERT INTO stale_marks (variant, device_class, node, ratio_ppm, since_us)
    SELECT variant, device_class, node, ratio_ppm, since_us FROM stale_profiles;
DROP TABLE stale_profiles;

-- Whether accuracies that nobody measured count for a task's floors beside measured ones.
ALTER TABLE tasks ADD COLUMN declared_accuracy TEXT NOT NULL DEFAULT 'unless_measured';

INSERT INTO counters (name, value) VALUES ('flag_changes', 0);
-- How many verdicts are kept, so that nobody has to count them.
INSERT INTO counters (name, value) SELECT 'feedback_kept', count(*) FROM feedback;
