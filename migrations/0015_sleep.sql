-- For how long a task's variants stay in memory after its last query, in the notation of `--keep`; and the task of an event that is about one.
ALTER TABLE tasks ADD COLUMN keep TEXT NOT NULL DEFAULT 'always';
ALTER TABLE events ADD COLUMN task BIGINT;
