-- Confidence: Which level did each calibration choose, and which levels did it test before?
-- One row per calibration and level, from the most conservative: loss, p-value, whether the level passed, mean exit
-- layer at this level, and which level was chosen. No level is chosen if the first one failed; full depth is used then.
SELECT
    model, task_label, method, label, kv_policy, seed, consistency, rule, delta, epsilon, step, threshold, mean_loss,
    p_value, passed, chosen, mean_exit_layer, n
FROM calibrations
ORDER BY model, task_label, method, label, kv_policy, seed, consistency, rule, delta, epsilon, cell_id, step;
