-- Measured speed-up of exit heads over full depth by epsilon, one row per task, setting, series and epsilon. A series
-- is a model, or another varied parameter: confidence, KV policy and the gated heads.
-- continues in shared/heads_runs.sql
curves AS (  -- a single epsilon has no curve
    SELECT * FROM heads WHERE speedup IS NOT NULL QUALIFY count(DISTINCT epsilon) OVER (PARTITION BY task_label, setting) > 1
)
SELECT task_label AS task, setting,
-- continues in shared/heads_series.sql
       epsilon, speedup AS value, speedup_low AS ci_low, speedup_high AS ci_high, aa_low, aa_high,
       speedup_per_token, tokens_per_request, full_tokens_per_request, is_other_length, timed_documents AS n, timed_rounds
FROM curves
ORDER BY task, setting, series, epsilon, cell_id;
