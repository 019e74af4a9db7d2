-- Encoders: Which quantity do papers call speed-up: layers saved (PABEE), layers over mean depth (ElasticBERT), FLOPs, or time?
-- One row per run of an encoder. layers_saved = 1 - mean_exit_layer / blocks is a saving; layer_ratio = blocks /
-- mean_exit_layer is a ratio of the same run. Neither counts off-ramps; flops_ratio does. speedup is measured time.
SELECT
    f.model, f.task_label, f.method, f.label, f.seed, f.metric, f.value, f.mean_exit_layer, f.blocks,
    1 - f.mean_exit_layer / f.blocks AS layers_saved, f.blocks / f.mean_exit_layer AS layer_ratio,
    f.ideal_speedup_flops AS flops_ratio, f.speedup, f.realised_fraction, f.batch_size
FROM frontier AS f
WHERE EXISTS (SELECT 1 FROM sequence_blocks AS b WHERE b.attempt_id = f.attempt_id)
ORDER BY f.model, f.task_label, f.method, f.mean_exit_layer, f.label, f.seed, f.cell_id;
