-- Share of full depth's tokens that are equal (of_choices: share of documents with full depth's choice, for given
-- texts), against mean exit layer: real decodes and replays of a probe, with intervals.
SELECT f.task_label AS task, f.model, f.conditions AS setting,
       f.method, f.params, f.kv_policy, f.execution, m.metric = 'choice_match' AS of_choices, m.value AS match,
       m.ci_low AS match_low, m.ci_high AS match_high, f.mean_exit_layer / f.blocks AS depth, f.n
FROM frontier AS f
JOIN metric_values AS m ON m.attempt_id = f.attempt_id AND m.metric IN ('token_match', 'choice_match') AND m.is_current
WHERE NOT f.random_weights AND f.mean_exit_layer IS NOT NULL
ORDER BY task, f.model, setting, f.method, f.execution, depth, f.cell_id;
