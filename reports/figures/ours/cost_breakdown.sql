-- Bytes read per token by part, as shares of the bytes that full depth reads per token: one row per setting that was
-- really run, with the share of each part. Read-outs shared by a verification are one product; their saving is
-- subtracted from the heads.
SELECT f.model, f.task_label AS task, f.method, f.params, f.kv_policy,
       max(m.value) FILTER (m.metric = 'cost_blocks_bytes') AS blocks,
       max(m.value) FILTER (m.metric = 'cost_heads_bytes')
           + least(0, coalesce(max(m.value) FILTER (m.metric = 'cost_verification_bytes'), 0)) AS heads,
       max(m.value) FILTER (m.metric = 'cost_gates_bytes') AS gates,
       max(m.value) FILTER (m.metric = 'cost_kv_bytes') AS kv,
       greatest(0, coalesce(max(m.value) FILTER (m.metric = 'cost_verification_bytes'), 0)) AS verification,
       max(m.value) FILTER (m.metric = 'cost_total_bytes') AS total,
       max(m.ci_low) FILTER (m.metric = 'cost_total_bytes') AS total_low,
       max(m.ci_high) FILTER (m.metric = 'cost_total_bytes') AS total_high, any_value(f.n) AS n
FROM frontier AS f
JOIN metric_values AS m ON m.attempt_id = f.attempt_id AND m.is_current
WHERE f.execution = 'real' AND NOT f.random_weights
GROUP BY f.model, f.task_label, f.method, f.params, f.kv_policy, f.cell_id
HAVING count(*) FILTER (m.metric = 'cost_total_bytes') > 0
ORDER BY f.model, task, f.method, f.params, f.kv_policy, f.cell_id;
