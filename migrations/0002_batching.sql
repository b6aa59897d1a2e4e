-- How the queries of a task share batches, in the notation of `--batching`; NULL: as each node is set.
ALTER TABLE tasks ADD COLUMN batching TEXT;
