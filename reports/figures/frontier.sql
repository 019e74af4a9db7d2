-- Quality against depth and against measured speed-up, one row a setting of a method.
-- A speed-up is inside the noise floor when its interval overlaps that of full depth timed against itself (A/A).
SELECT task_label AS task, model, concat_ws(', ', dtype, device, 'batch ' || batch_size) AS setting,
       method, params, kv_policy, execution,
       metric, value, ci_low, ci_high, full_value, mean_exit_layer, blocks,
       speedup, speedup_low, speedup_high, aa_low, aa_high,
       coalesce(NOT is_full_depth AND speedup_low <= aa_high AND speedup_high >= aa_low, false) AS inside_noise_floor, n
FROM frontier
WHERE NOT random_weights AND value IS NOT NULL
ORDER BY task, model, setting, metric, method, execution, mean_exit_layer, cell_id;
