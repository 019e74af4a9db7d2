-- Cost and speed: Which methods look fast because they say less?
-- Speed-up per request is speed-up per token times the factor by which full depth's outputs are longer
-- (length_factor). A method with a length factor above 1 saved time by stopping earlier; only the speed-up per token
-- is early exit's.
WITH timed AS (
    SELECT
        model, task_label, method, params, kv_policy, seed, cell_id,
        max(value) FILTER (metric = 'ms_per_request') AS ms_per_request,
        max(value) FILTER (metric = 'full_ms_per_request') AS full_ms_per_request,
        max(value) FILTER (metric = 'ms_per_token') AS ms_per_token,
        max(value) FILTER (metric = 'full_ms_per_token') AS full_ms_per_token
    FROM metric_values
    WHERE kind = 'timing' AND is_current
    GROUP BY ALL
)
SELECT
    model, task_label, method, params, kv_policy, seed, ms_per_request, full_ms_per_request,
    ms_per_request / ms_per_token AS tokens_per_request,
    full_ms_per_request / full_ms_per_token AS full_tokens_per_request,
    full_ms_per_request / ms_per_request AS speedup_per_request, full_ms_per_token / ms_per_token AS speedup_per_token,
    (full_ms_per_request / full_ms_per_token) / (ms_per_request / ms_per_token) AS length_factor
FROM timed
ORDER BY model, task_label, length_factor DESC, method, params, kv_policy, seed, cell_id;
