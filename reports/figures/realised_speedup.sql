-- Measured speed-up of decoding beside the ideal one, by the bytes of the very tokens that were timed: one row a timing
-- run that the frontier shows. The intervals of speed-up and realised fraction are those of the measured ratio.
SELECT f.task_label AS task, f.model, concat_ws(', ', f.dtype, f.device, 'batch ' || f.batch_size) AS setting,
       f.method, f.params, f.kv_policy, d.value AS speedup, d.ci_low AS speedup_low, d.ci_high AS speedup_high,
       d.value / r.value AS ideal, r.value AS realised, r.value * d.ci_low / d.value AS realised_low,
       r.value * d.ci_high / d.value AS realised_high, f.aa_low, f.aa_high, f.is_full_depth, d.n
FROM frontier AS f
JOIN metric_values AS d ON d.attempt_id = f.timing_attempt_id AND d.metric = 'speedup_decode' AND d.is_current
JOIN metric_values AS r ON r.attempt_id = f.timing_attempt_id AND r.metric = 'realised_fraction' AND r.is_current
WHERE NOT f.random_weights AND r.value > 0 AND d.value > 0
ORDER BY setting, task, f.model, f.method, f.params, f.kv_policy, f.cell_id;
