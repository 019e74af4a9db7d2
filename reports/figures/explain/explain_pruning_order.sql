-- Pruned heads by first gated block: is a shrinking list cut by rank or by token id? One row per head and block.
WITH
-- continues in ../prune/shared/prune_gates.sql
asked AS (FROM gates WHERE method = 'calm-softmax'),
pruned AS (
    SELECT DISTINCT task_label, model, setting, full_depth_attempt_id, min_exit FROM asked WHERE head = 'pruned-decaying'
)
SELECT a.task_label AS task, a.model, a.setting, a.head, a.min_exit, a.metric,
       a.value, a.ci_low, a.ci_high, a.full_value,
       m.value AS token_match, m.ci_low AS token_match_low, m.ci_high AS token_match_high,
       a.mean_exit_layer, a.blocks, a.n
FROM asked AS a
JOIN pruned USING (task_label, model, setting, full_depth_attempt_id, min_exit)
JOIN metric_values AS m ON m.attempt_id = a.attempt_id AND m.metric = 'token_match' AND m.is_current
WHERE a.head IN ('full', 'pruned-fixed', 'pruned-decaying', 'pruned-decaying-idsorted')
ORDER BY task, a.model, a.setting, a.head, a.min_exit, a.cell_id;
