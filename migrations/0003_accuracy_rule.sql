-- Which figure of a measured accuracy a task's floors are compared with: the point value, or the lower end of its
-- interval.
ALTER TABLE tasks ADD COLUMN accuracy_rule TEXT NOT NULL DEFAULT 'point';
