-- Share of full depth's tokens that are equal against mean exit layer: real decodes and replays of a probe, with intervals.
SELECT f.task_label AS task, f.model, f.conditions AS setting,
       f.method, f.params, f.kv_policy, f.execution, f.token_match, m.ci_low AS match_low, m.ci_high AS match_high,
       f.mean_exit_layer / f.blocks AS depth, f.n
FROM frontier AS f
LEFT JOIN metric_values AS m ON m.attempt_id = f.attempt_id AND m.metric = 'token_match' AND m.is_current
WHERE NOT f.random_weights AND f.token_match IS NOT NULL AND f.mean_exit_layer IS NOT NULL
ORDER BY task, f.model, setting, f.method, f.execution, depth, f.cell_id;
