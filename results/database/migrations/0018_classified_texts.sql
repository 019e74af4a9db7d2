-- Of encoders at full depth: the text that was classified, and the right answer as it is spelled; NULL elsewhere, and where an
-- export left them out.
ALTER TABLE sample ADD COLUMN input_text VARCHAR;
ALTER TABLE sample ADD COLUMN gold_text VARCHAR;
