-- Cost and speed: Which methods seem fast because their answers are shorter?
-- length_ratio: number of tokens in the timed answers over full depth's. A method below 1 saved time by stopping
-- earlier; one above 1 wrote more. Only the speed-up per token, of decoding alone, is due to early exit; the speed-up
-- per request includes the prompt. Largest differences in length first.
WITH timed AS (
    SELECT
        model, task_label, method, label, kv_policy, seed, cell_id,
        max(value) FILTER (metric = 'tokens_per_request') AS tokens_per_request,
        max(value) FILTER (metric = 'full_tokens_per_request') AS full_tokens_per_request,
        max(value) FILTER (metric = 'full_ms_per_request') / max(value) FILTER (metric = 'ms_per_request')
            AS speedup_per_request,
        max(value) FILTER (metric = 'full_ms_per_token') / max(value) FILTER (metric = 'ms_per_token')
            AS speedup_per_token,
        max(value) FILTER (metric = 'timed_documents') AS timed_documents,
        max(value) FILTER (metric = 'timed_rounds') AS timed_rounds
    FROM metric_values
    WHERE kind = 'timing' AND is_current
    GROUP BY ALL
)
SELECT
    model, task_label, method, label, kv_policy, seed, tokens_per_request, full_tokens_per_request,
    tokens_per_request / full_tokens_per_request AS length_ratio, speedup_per_request, speedup_per_token,
    timed_documents::BIGINT AS timed_documents, timed_rounds::BIGINT AS timed_rounds
FROM timed
ORDER BY abs(ln(length_ratio)) DESC, model, task_label, method, label, kv_policy, seed, cell_id;
