-- Encoders: measured speed-up of a setting against the share of the blocks that its sequences save, one row a timing run of
-- each batch size. layer_ratio: blocks over mean exit layer, the speed-up if blocks were all that takes time.
SELECT
    f.conditions AS setting, f.batch_size, f.model, f.task_label AS task, f.method, f.params, f.kv_policy, f.blocks, f.mean_exit_layer,
    1 - f.mean_exit_layer / f.blocks AS saving, f.blocks / f.mean_exit_layer AS layer_ratio, f.speedup, f.speedup_low,
    f.speedup_high, f.aa_low, f.aa_high, f.speedup_low <= f.aa_high AND f.speedup_high >= f.aa_low AS inside_noise_floor,
    f.timed_documents AS n
FROM frontier AS f JOIN (SELECT attempt_id, model_kind FROM runs) AS r USING (attempt_id)
WHERE r.model_kind = 'encoder' AND NOT f.random_weights AND f.execution = 'real' AND NOT f.is_full_depth AND f.speedup IS NOT NULL
ORDER BY f.batch_size, setting, task, f.model, f.method, f.params, f.cell_id;
