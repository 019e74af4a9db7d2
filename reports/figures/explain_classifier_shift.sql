-- One exit classifier under three losses, by threshold. One row a loss and threshold.
SELECT f.task_label AS task, f.model, concat_ws(', ', f.dtype, f.device, 'batch ' || f.batch_size) AS setting,
       f.params ->> 'loss' AS loss, CAST(f.params ->> 'threshold' AS DOUBLE) AS threshold, f.metric,
       f.value, f.ci_low, f.ci_high, f.full_value,
       m.value AS token_match, m.ci_low AS token_match_low, m.ci_high AS token_match_high,
       f.mean_exit_layer, f.blocks, f.n
FROM frontier AS f
JOIN metric_values AS m ON m.attempt_id = f.attempt_id AND m.metric = 'token_match'
WHERE f.suite = 'explain-published' AND NOT f.random_weights AND f.execution = 'real' AND f.method = 'calm-classifier'
ORDER BY task, f.model, setting, loss, threshold, f.cell_id;
