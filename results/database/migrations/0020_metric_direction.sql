-- Of scores (roles headline, task and agreement) which way is better, and the least and the greatest value that they can have. The
-- direction is NULL for other metrics, and filled in by results/database/earlier.py for scores that do not say it; the scale is NULL
-- where there is none, and where an older version ran.
ALTER TABLE metric ADD COLUMN lower_is_better BOOLEAN;
ALTER TABLE metric ADD COLUMN scale_low DOUBLE;
ALTER TABLE metric ADD COLUMN scale_high DOUBLE;
