-- Cost and speed: What is the fastest setting for every loss that may be allowed?
-- The view pareto: settings that no other beats in speed and in what may be lost, on the choosing third of the documents. A row is chosen where
-- at least choosing_loss_high_percent and less than next_percent of full depth's quality may be lost, and confirmed by the other documents
-- from confirmed_percent on (NULL: never).
SELECT
    model, task_label, method, label, kv_policy, seed, is_static, metric, choosing_loss_high_percent, next_percent, confirmed_percent,
    confirming_n, confirming_delta, confirming_delta_low, confirming_delta_high, confirming_loss_high_percent, confirming_speedup,
    confirming_speedup_low, confirming_speedup_high
FROM pareto
ORDER BY model, task_label, is_static, choosing_loss_high_percent, cell_id;
