-- Speed-up and score of the ideal exit, run by a method that knows it and really skips blocks: one row per model, task
-- and setting; then the paper's values, one row per model, data and training (with its scores of full depth).
WITH ours AS (
    SELECT 'here' AS printed_in, f.task_label AS data, f.model, coalesce(t.training, 'not known') AS training, f.blocks,
           f.conditions AS setting, f.batch_size,
           CASE WHEN f.model_kind <> 'encoder' THEN f.kv_policy END AS kv_policy, f.mean_exit_layer,
           f.speedup, f.speedup_low, f.speedup_high, f.speed_status,
           inside_noise(f.speedup_low, f.speedup_high, f.aa_low, f.aa_high) AS inside_noise_floor,
           f.speedup_per_token, f.tokens_per_request, f.full_tokens_per_request, f.is_other_length, f.speedup_decode,
           f.ideal_speedup_decode, f.timed_documents, f.timed_rounds, f.metric, f.value, f.ci_low, f.ci_high, f.full_value, f.delta,
           NULL::VARCHAR AS score, f.n, f.cell_id, f.model_kind = 'encoder' AS is_encoder, lower(regexp_replace(f.task, '-', '', 'g')) AS place
    FROM frontier AS f
    JOIN objectives AS t USING (model)
    WHERE NOT f.random_weights AND f.method = 'oracle' AND f.params ->> 'match' = 'first' AND f.execution = 'real'
          AND f.conforms IS DISTINCT FROM false
),
theirs AS (
    SELECT figure_or_table AS printed_in, dataset AS data, model,
           CASE WHEN setting = 'with joint optimisation' THEN 'every block' ELSE 'last block' END AS training,
           try_cast(regexp_extract(model, '\((\d+)\)', 1) AS INTEGER) AS blocks,
           max(value) FILTER (metric = 'speedup') AS speedup,
           string_agg(metric || ' ' || value, ', ' ORDER BY metric) FILTER (metric <> 'speedup') AS score,
           true AS is_encoder, lower(regexp_replace(dataset, 'GLUE |-', '', 'g')) AS place
    FROM published
    WHERE source = 'NATCAP paper' AND figure_or_table = 'Table 4'
    GROUP BY ALL
)
SELECT * EXCLUDE (is_encoder, place)
FROM (FROM ours UNION ALL BY NAME FROM theirs)
WHERE EXISTS (FROM ours)
ORDER BY is_encoder, CASE WHEN is_encoder THEN (place NOT IN (SELECT place FROM ours WHERE is_encoder), place) END,
         printed_in <> 'here', data, model, training DESC, setting, kv_policy, cell_id;
