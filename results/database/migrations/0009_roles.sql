-- What a metric is about (results/spool/schema.py: ROLES), and parameters of the method that its others leave without effect; NULL
-- where an attempt does not say. What can be told from the rows themselves is filled in by results/database/earlier.py.
ALTER TABLE metric ADD COLUMN role VARCHAR;
ALTER TABLE cell ADD COLUMN unused_params VARCHAR[];
