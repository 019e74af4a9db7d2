-- From which block a probability and a similarity fall by no more than `tolerance` in all (see results/statistics/stability.py): what
-- rounding makes fall is not told from what falls otherwise by monotone_from and grows_from. Lists have what it takes.
ALTER TABLE probe_token ADD COLUMN tolerance DOUBLE;
ALTER TABLE probe_token ADD COLUMN nearly_monotone_from SMALLINT;
ALTER TABLE probe_token ADD COLUMN nearly_grows_from SMALLINT;
UPDATE probe_token SET
    tolerance = 0.01,
    nearly_monotone_from = 1 + coalesce(list_max([
        CASE WHEN p_final[k]::DOUBLE - list_min(p_final[k + 1:])::DOUBLE > 0.01 THEN k ELSE 0 END
        for k in range(1, len(p_final))
    ]), 0),
    nearly_grows_from = 1 + coalesce(list_max([
        CASE WHEN cosine_last[k]::DOUBLE - list_min(cosine_last[k + 1:-2])::DOUBLE > 0.01 THEN k ELSE 0 END
        for k in range(1, len(cosine_last) - 1)
    ]), 0);

-- The earliest exit of a published setting, as a share of the blocks of the model it was of; NULL where a setting has none.
ALTER TABLE published_result ADD COLUMN min_exit_share DOUBLE;
DELETE FROM published_source;
