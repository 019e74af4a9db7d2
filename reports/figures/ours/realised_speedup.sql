-- Measured speed-up of decoding next to the ideal one of the same timed answers: one row per timing run that the
-- frontier shows and that is measurable. The intervals of speed-up and realised fraction are those of the measured
-- ratio.
SELECT f.task_label AS task, f.model, f.conditions AS setting,
       f.method, f.params, f.kv_policy, d.value AS speedup, d.ci_low AS speedup_low, d.ci_high AS speedup_high,
       i.value AS ideal, d.value / i.value AS realised, d.ci_low / i.value AS realised_low,
       d.ci_high / i.value AS realised_high, f.is_full_depth, f.timed_documents AS n, f.timed_rounds
FROM frontier AS f
JOIN metric_values AS d ON d.attempt_id = f.timing_attempt_id AND d.metric = 'speedup_decode' AND d.is_current
JOIN metric_values AS i ON i.attempt_id = f.timing_attempt_id AND i.metric = 'ideal_speedup_decode' AND i.is_current
WHERE NOT f.random_weights AND f.speed_status = 'timed' AND is_measurable(d.ci_low, d.ci_high) AND i.value > 0 AND d.value > 0
ORDER BY setting, task, f.model, f.method, f.params, f.kv_policy, f.cell_id;
