-- Measured speed-up of exit heads over full depth by epsilon, one row per task, setting, series and epsilon. A series
-- is a model, or another varied parameter: confidence, KV policy and the gated heads.
WITH heads AS (
    SELECT task_label AS task, model, conditions AS setting,
           params ->> 'confidence' AS confidence, kv_policy, 'heads ' || (params ->> 'exit_blocks') AS asked,
           CAST(params ->> 'epsilon' AS DOUBLE) AS epsilon, speedup, speedup_low, speedup_high, aa_low, aa_high,
           speedup_per_token, tokens_per_request, full_tokens_per_request, is_other_length, timed_documents AS n, timed_rounds,
           cell_id
    FROM frontier
    WHERE NOT random_weights AND execution = 'real' AND method = 'heads' AND params ->> 'rule' = 'epsilon'
        AND coalesce(CAST(params ->> 'temperature' AS DOUBLE), 0) = 0 AND speedup IS NOT NULL
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
       epsilon, speedup AS value, speedup_low AS ci_low, speedup_high AS ci_high, aa_low, aa_high,
       speedup_per_token, tokens_per_request, full_tokens_per_request, is_other_length, n, timed_rounds
FROM heads
ORDER BY task, setting, series, epsilon, cell_id;
