-- The task's headline metric of exit heads by epsilon, one row per task, setting, series and epsilon. A series is a
-- model or another varied parameter: confidence, KV policy and the gated heads.
WITH heads AS (
    SELECT task_label AS task, model, conditions AS setting,
           params ->> 'confidence' AS confidence, kv_policy, 'heads ' || (params ->> 'exit_blocks') AS asked,
           CAST(params ->> 'epsilon' AS DOUBLE) AS epsilon, metric, value, ci_low, ci_high, full_value,
           share_kept(value, nullif(full_value, 0), lower_is_better) AS kept, n, cell_id
    FROM frontier
    WHERE NOT random_weights AND execution = 'real' AND method = 'heads' AND params ->> 'rule' = 'epsilon'
        AND coalesce(CAST(params ->> 'temperature' AS DOUBLE), 0) = 0 AND value IS NOT NULL
    -- a single epsilon has no curve
    QUALIFY count(DISTINCT epsilon) OVER (PARTITION BY task, setting) > 1
)
SELECT task, setting,
       coalesce(
           nullif(
               concat_ws(
                   ' · ', if(count(DISTINCT model) OVER () > 1, model, NULL),
                   if(count(DISTINCT confidence) OVER () > 1, confidence, NULL),
                   if(count(DISTINCT kv_policy) OVER () > 1, kv_policy, NULL),
                   if(count(DISTINCT asked) OVER () > 1, asked, NULL)
               ),
               ''
           ),
           model
       ) AS series,
       epsilon, metric, value, ci_low, ci_high, full_value, kept, n
FROM heads
ORDER BY task, setting, series, epsilon, cell_id;
