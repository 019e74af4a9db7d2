-- The task's headline metric of exit heads by epsilon, one row per task, setting, series and epsilon. A series is a
-- model or another varied parameter: confidence, KV policy and the gated heads.
-- continues in shared/heads_runs.sql
curves AS (  -- a single epsilon has no curve
    SELECT * FROM heads WHERE value IS NOT NULL QUALIFY count(DISTINCT epsilon) OVER (PARTITION BY task_label, setting) > 1
)
SELECT task_label AS task, setting,
-- continues in shared/heads_series.sql
       epsilon, metric, value, ci_low, ci_high, full_value,
       share_kept(value, full_value, lower_is_better) AS kept, n
FROM curves
ORDER BY task, setting, series, epsilon, cell_id;
