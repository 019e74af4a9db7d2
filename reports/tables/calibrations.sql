-- Thresholds chosen with a guarantee: every tested level, the most conservative first, and the loss of the choice on
-- held-out documents.
SELECT c.model, c.task_label AS task, c.method, c.params, c.kv_policy, c.consistency, c.rule, c.delta, c.epsilon, c.n,
       c.threshold, c.mean_loss, c.p_value, c.mean_exit_layer,
       CASE WHEN c.chosen THEN 'chosen' WHEN c.passed THEN 'passed' ELSE 'failed' END AS verdict,
       CASE WHEN c.chosen THEN held.value END AS held_out_loss, CASE WHEN c.chosen THEN held.ci_low END AS held_out_low,
       CASE WHEN c.chosen THEN held.ci_high END AS held_out_high, r.conforms, c.attempt_id
FROM calibrations AS c
JOIN (SELECT attempt_id, conforms FROM runs) AS r USING (attempt_id)
LEFT JOIN metric_values AS held
    ON held.attempt_id = c.attempt_id AND held.metric = 'held_out_loss' AND held.is_current
WHERE NOT c.random_weights
ORDER BY model, task, c.method, c.params, c.consistency, c.rule, c.delta, c.epsilon, c.attempt_id, c.step;
