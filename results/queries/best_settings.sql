-- Cost and speed: What is the fastest setting for each allowed loss?
-- The view pareto: settings that no other setting beats in both speed and allowed loss, on the choosing third of the
-- documents. A setting is chosen if the allowed loss is at least choosing_loss_high_percent and less than next_percent
-- of full depth's quality. The other documents confirm it if the allowed loss is at least confirmed_percent (NULL:
-- never confirmed).
SELECT
    model, task_label, method, label, kv_policy, seed, is_static, metric, choosing_loss_high_percent, next_percent, confirmed_percent,
    confirming_n, confirming_delta, confirming_delta_low, confirming_delta_high, confirming_loss_high_percent, confirming_speedup,
    confirming_speedup_low, confirming_speedup_high
FROM pareto
ORDER BY model, task_label, is_static, choosing_loss_high_percent, cell_id;
