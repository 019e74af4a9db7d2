-- Encoders: score of each setting against the share of the blocks that its sequences save, 1 - mean exit layer / blocks: one
-- row a setting; static_value: what static depth scores at the same saving, between the two depths nearest to it (full
-- depth is one). line: all of a setting but its threshold.
WITH
-- continues in shared/encoder_runs.sql
depths AS (
    SELECT model, task_label, mean_exit_layer AS depth, value FROM shown WHERE method = 'static' OR is_full_depth
),
deeper AS (
    SELECT s.attempt_id, min(d.depth) AS depth, arg_min(d.value, d.depth) AS value
    FROM shown AS s JOIN depths AS d USING (model, task_label) WHERE d.depth >= s.mean_exit_layer GROUP BY ALL
),
shallower AS (
    SELECT s.attempt_id, max(d.depth) AS depth, arg_max(d.value, d.depth) AS value
    FROM shown AS s JOIN depths AS d USING (model, task_label) WHERE d.depth <= s.mean_exit_layer GROUP BY ALL
)
SELECT
    s.model, s.task_label AS task, s.metric, s.lower_is_better, s.method, s.params, s.kv_policy, s.execution,
    json_merge_patch(s.params, '{"threshold": null}')::VARCHAR AS line, s.blocks, s.mean_exit_layer,
    1 - s.mean_exit_layer / s.blocks AS saving, s.value, s.ci_low, s.ci_high,
    CASE WHEN NOT s.is_full_depth AND s.method <> 'static' THEN coalesce(
        b.value + (a.value - b.value) * (s.mean_exit_layer - b.depth) / nullif(a.depth - b.depth, 0), b.value
    ) END AS static_value, s.is_full_depth, s.n
FROM shown AS s
LEFT JOIN deeper AS a USING (attempt_id)
LEFT JOIN shallower AS b USING (attempt_id)
ORDER BY s.task_label, s.model, s.method, line, saving, s.params, s.attempt_id;
