-- Cost and speed: Which setting should be used on each task, and do other documents confirm it?
-- The view pareto at one allowed loss. On a third of the documents, the fastest setting is chosen whose loss is bounded
-- by $loss percent of full depth's quality. is_confirmed: on the other documents its loss has the same bound and it is
-- significantly faster than full depth. All numbers are from those other documents. Static depths are chosen among
-- themselves. If a model and task have no row, no timed setting has that bound: use full depth.
-- $loss = 1: percent of full depth's quality that may be lost
-- $suite = null: only runs of this suite; null for all
SELECT
    model, task_label, method, label, kv_policy, is_static, coalesce(confirmed_percent <= $loss, false) AS is_confirmed, metric, confirming_n,
    confirming_delta, confirming_delta_low, confirming_delta_high, confirming_loss_high_percent, confirming_speedup,
    confirming_speedup_low, confirming_speedup_high, params
FROM pareto
WHERE choosing_loss_high_percent <= $loss AND coalesce(next_percent > $loss, true)
    AND ($suite::VARCHAR IS NULL OR suite = $suite::VARCHAR)
ORDER BY task_label, model, is_static, cell_id;
