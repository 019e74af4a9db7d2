-- Which documents were asked for: source, split, limit, seed, level and files, as a suite says them. NULL for tasks of lm-eval and
-- declared ones, whose texts are elsewhere, and for cells of before.
ALTER TABLE cell ADD COLUMN data_asked JSON;
