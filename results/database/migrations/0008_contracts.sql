-- What was found of a run's method before its first cell (verdict and problems), what of the checkpoint's own generation
-- settings was not applied (by name), after how many seconds a cell is ended; NULL where an attempt does not say.
ALTER TABLE cell ADD COLUMN conformance JSON;
ALTER TABLE cell ADD COLUMN not_applied JSON;
ALTER TABLE cell ADD COLUMN cell_timeout_s DOUBLE;

-- Tokens of the prompt that were cut off, since it was longer than the suite allows; NULL where nothing is cut.
ALTER TABLE sample ADD COLUMN n_cut INTEGER;
