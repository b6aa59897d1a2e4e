-- For how long a task's answers may be given again to who asks the very same, in the notation of `--cache`.
ALTER TABLE tasks ADD COLUMN cache TEXT NOT NULL DEFAULT 'off';
