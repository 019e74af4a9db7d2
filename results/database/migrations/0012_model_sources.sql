-- Where a model came from, such as hub:OWNER/NAME@COMMIT; NULL for a folder of the user's, a recipe, and cells of before.
ALTER TABLE cell ADD COLUMN model_source VARCHAR;
