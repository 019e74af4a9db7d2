-- Targets next to the achieved values. step: a tested level of a calibration; held: its choice on held-out documents;
-- fitted: a threshold set for an agreement epsilon, and the agreement of the answers decoded with it.
SELECT 'step' AS what, c.model, c.task_label AS task, c.method, c.params, c.kv_policy, c.attempt_id, c.consistency,
       c.delta, c.epsilon, c.threshold, c.mean_loss AS value, NULL AS low, NULL AS high, c.p_value, c.chosen, c.n
FROM calibrations AS c
WHERE NOT c.random_weights
UNION ALL
SELECT 'held', c.model, c.task_label, c.method, c.params, c.kv_policy, c.attempt_id, c.consistency, c.delta, c.epsilon,
       c.threshold, m.value, m.ci_low, m.ci_high, NULL, true, m.n
FROM calibrations AS c
JOIN metric_values AS m ON m.attempt_id = c.attempt_id AND m.metric = 'held_out_loss' AND m.is_current
WHERE NOT c.random_weights AND c.chosen
UNION ALL
SELECT 'fitted', f.model, f.task_label, f.method, f.params, f.kv_policy, f.attempt_id, NULL, NULL,
       (f.params ->> 'epsilon')::DOUBLE, NULL, m.value, m.ci_low, m.ci_high, NULL, NULL, m.n
FROM frontier AS f
JOIN metric_values AS m ON m.attempt_id = f.attempt_id AND m.metric = 'token_match' AND m.is_current
WHERE NOT f.random_weights AND f.execution = 'real' AND f.params ->> 'rule' = 'epsilon'
ORDER BY what, model, task, method, params, kv_policy, consistency, delta, epsilon, attempt_id, threshold DESC;
