-- Whose a model is, and which version of a name answers where nothing is pinned: the one that was promoted last.
-- `promoted` is the version of the catalogue in which that happened; 0 is a candidate.
ALTER TABLE models ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE models ADD COLUMN promoted BIGINT NOT NULL DEFAULT 0;
-- What is there already: the newest version answers, and rolling back leads to the one before it. There are at most as
-- many of a name as there were changes of the catalogue.
UPDATE models SET promoted = (
    SELECT count(*) FROM models AS older
    WHERE older.task = models.task AND older.tenant = models.tenant AND older.name = models.name
        AND older.version <= models.version
);

-- Who changed which version answers, and when. Rows are added, and the oldest forgotten.
CREATE TABLE version_changes (
    seq BIGINT NOT NULL PRIMARY KEY,
    task BIGINT NOT NULL,
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    action TEXT NOT NULL,
    default_before BIGINT,
    default_after BIGINT,
    who TEXT NOT NULL,
    at_us BIGINT NOT NULL
);
CREATE INDEX version_changes_of_model ON version_changes (task, name, seq);

-- What was measured before a registration was whole, so that a second attempt need not measure it again. Forgotten soon.
CREATE TABLE measured (
    key TEXT NOT NULL PRIMARY KEY,
    seq BIGINT NOT NULL,
    body TEXT NOT NULL,
    at_us BIGINT NOT NULL
);
CREATE INDEX measured_in_order ON measured (seq);

INSERT INTO counters (name, value) VALUES ('version_changes', 0), ('measured', 0);
