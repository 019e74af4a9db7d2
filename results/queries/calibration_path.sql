-- Confidence: Which level did each calibration choose, and how did the walk get there?
-- Every calibration, level by level from the most conservative: loss, p-value, whether the level passed, how deep
-- tokens go there, and which level was chosen (none where the first failed: full depth is used then).
SELECT
    model, task_label, method, label, kv_policy, seed, consistency, rule, delta, epsilon, step, threshold, mean_loss,
    p_value, passed, chosen, mean_exit_layer, n
FROM calibrations
ORDER BY model, task_label, method, label, kv_policy, seed, consistency, rule, delta, epsilon, cell_id, step;
