-- Every timed setting on one model and task: where most methods were timed, and of those where their quality differs most.
WITH timed AS (
    SELECT *, concat_ws(', ', dtype, device, 'batch ' || batch_size) AS setting
    FROM frontier
    WHERE execution = 'real' AND NOT random_weights AND NOT limited AND speedup IS NOT NULL
),
chosen AS (
    SELECT model, task_label, setting
    FROM timed
    GROUP BY ALL
    ORDER BY count(DISTINCT method) DESC, stddev(value) DESC, model, task_label, setting
    LIMIT 1
)
SELECT model, task_label AS task, setting, coalesce(timing_gpu, timing_cpu) AS machine, blocks, method, params, kv_policy,
       execution, metric, value, ci_low, ci_high, full_value, delta, token_match, mean_exit_layer, mean_blocks_run, is_full_depth, speedup,
       speedup_low, speedup_high,
       coalesce(NOT is_full_depth AND speedup_low <= aa_high AND speedup_high >= aa_low, false) AS inside_noise_floor,
       speedup_per_token, tokens_per_request, full_tokens_per_request, is_other_length, speedup_decode, ideal_speedup_decode, n,
       timed_documents, timed_rounds, conforms, cell_id
FROM timed SEMI JOIN chosen USING (model, task_label, setting)
ORDER BY is_full_depth DESC, speedup DESC, method, params, cell_id;
