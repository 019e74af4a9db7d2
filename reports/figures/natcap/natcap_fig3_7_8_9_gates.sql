-- Gates at the most aggressive setting that keeps 98 % of full depth's score: distance of their exits from the ideal
-- one, and speed-up. One row per task, model and gate; the ideal exit itself (oracle) has no such condition.
-- distance: mean over tokens of |exit - first match| in a replay of the same setting; speed-up: of the real decodes.
-- simulated_speedup: all blocks over those of the replay, without any other cost.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH candidate AS (
    SELECT *, conditions AS setting
    FROM frontier
    WHERE NOT random_weights AND (
        method IN ('max-prob', 'entropy', 'patience') OR method = 'oracle' AND params ->> 'match' = 'first'
    )
),
kept AS (
    SELECT * FROM candidate
    WHERE execution = 'real' AND (gain >= -0.02 * abs(full_value) OR method = 'oracle')
    QUALIFY row_number() OVER (
        PARTITION BY task_label, model, setting, method
        ORDER BY mean_exit_layer, speedup DESC NULLS LAST, params, kv_policy, cell_id
    ) = 1
),
replayed AS (
    SELECT k.cell_id, c.attempt_id, c.blocks / c.mean_exit_layer AS fewer_blocks
    FROM kept AS k
    JOIN candidate AS c USING (task_label, model, setting, method, params)
    WHERE c.execution = 'simulated'
    QUALIFY row_number() OVER (PARTITION BY k.cell_id ORDER BY c.attempt_id DESC) = 1
),
distances AS (
    SELECT x.cell_id, sum(apart) / sum(n) AS distance, half_width(apart, n) AS distance_half_width,
           CAST(sum(n) AS BIGINT) AS n
    FROM (
        SELECT a.cell_id, t.doc_key, sum(abs(t.exit_layer - p.first_match)) AS apart, count(*) AS n
        FROM replayed AS a
        JOIN token_exit AS t USING (attempt_id)
        JOIN runs AS r USING (attempt_id)
        JOIN plain_probes AS probe ON probe.full_depth_cell_id = r.full_depth_cell_id AND probe.is_latest
        JOIN probe_trace AS p
            ON p.attempt_id = probe.attempt_id AND p.doc_key = t.doc_key AND p.position = t.position
        WHERE t.choice IS NULL AND (t.position > 1 OR r.first_token = 'gated')  -- else there is no gate
        GROUP BY ALL
    ) AS x
    GROUP BY ALL
)
SELECT k.task_label AS task, k.model, k.setting,
       CASE WHEN training IN ('last block', 'every block') THEN training ELSE 'other' END AS training, k.method,
       coalesce(k.params ->> 'threshold', k.params ->> 'patience') AS threshold, k.params, k.kv_policy, k.blocks,
       k.metric, k.value, k.full_value, round(d.distance, 6) AS distance,
       round(d.distance_half_width, 6) AS distance_half_width, k.speedup, k.speedup_low, k.speedup_high,
       k.aa_low, k.aa_high,
       inside_noise(k.speedup_low, k.speedup_high, k.aa_low, k.aa_high) AS inside_noise_floor,
       k.speedup_per_token, k.tokens_per_request, k.full_tokens_per_request, k.is_other_length, k.timed_documents, k.timed_rounds,
       round(a.fewer_blocks, 6) AS simulated_speedup, d.n
FROM kept AS k
LEFT JOIN replayed AS a USING (cell_id)
LEFT JOIN distances AS d USING (cell_id)
JOIN objectives USING (model)
WHERE k.speedup IS NOT NULL OR a.fewer_blocks IS NOT NULL
ORDER BY task, k.model, k.setting, k.method, k.cell_id;
