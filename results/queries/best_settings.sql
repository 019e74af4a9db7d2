-- Cost and speed: What is the fastest setting for every loss that may be allowed?
-- The view pareto: settings that are shown to be faster than full depth and that no other beats in speed and in what may be lost.
-- Take a row where as many percent of full depth's quality as loss_high_percent may be lost, and fewer than next_percent.
SELECT
    model, task_label, method, label, kv_policy, seed, is_static, metric, delta, delta_low, delta_high, loss_high_percent, next_percent,
    speedup, speedup_low, speedup_high
FROM pareto
ORDER BY model, task_label, is_static, loss_high_percent, cell_id;
