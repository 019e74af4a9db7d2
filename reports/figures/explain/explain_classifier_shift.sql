-- One exit classifier under three losses, by threshold. One row per loss and threshold.
SELECT f.task_label AS task, f.model,
       concat_ws(', ', f.conditions, nullif(f.kv_policy, 'state-copy')) AS setting,
       f.params ->> 'loss' AS loss, CAST(f.params ->> 'threshold' AS DOUBLE) AS threshold, f.metric,
       f.value, f.ci_low, f.ci_high, f.full_value,
       m.value AS token_match, m.ci_low AS token_match_low, m.ci_high AS token_match_high,
       f.mean_exit_layer, f.blocks, f.n
FROM frontier AS f
JOIN metric_values AS m ON m.attempt_id = f.attempt_id AND m.metric = 'token_match' AND m.is_current
WHERE NOT f.random_weights AND f.execution = 'real' AND f.method = 'calm-classifier'
      AND f.params ->> 'rule' = 'constant' AND f.params ->> 'decay' = 'none' AND f.params ->> 'network' = 'mlp'
QUALIFY count(DISTINCT loss) OVER (PARTITION BY f.task_label, f.model, setting, f.full_depth_attempt_id) > 1
ORDER BY task, f.model, setting, loss, threshold, f.cell_id;
