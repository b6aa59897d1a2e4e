-- What a model is to be measured with on device classes that come later, and who measures what just now.

CREATE TABLE evidence (
    model BIGINT NOT NULL PRIMARY KEY REFERENCES models (id),
    body TEXT NOT NULL
);

-- A row is there while a variant has no profile on a device class and somebody took it up. Advisory: once its time is
-- over anybody may take it up.
CREATE TABLE measurings (
    variant BIGINT NOT NULL REFERENCES variants (id),
    device_class TEXT NOT NULL,
    node TEXT NOT NULL,
    until_us BIGINT NOT NULL,
    progress TEXT NOT NULL,
    failed TEXT,
    attempts BIGINT NOT NULL,
    PRIMARY KEY (variant, device_class)
);
