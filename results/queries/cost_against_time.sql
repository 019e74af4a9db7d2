-- Cost and speed: How much of the saved work becomes saved time?
-- Of decoding, prompts left out: the speed-up that the work of the timed answers allows (by bytes read, at batch sizes
-- above 1 by floating-point operations), beside the measured one. realised: measured over allowed. Far below 1:
-- launches, gates and fills cost what the blocks save; above 1: the cost model leaves something out, such as caches that
-- hold a small model.
SELECT
    model, task_label, method, label, kv_policy, seed, device, dtype, batch_size,
    mean_blocks_run / blocks AS share_of_blocks, ideal_speedup_decode, speedup_decode, realised_fraction AS realised,
    timed_documents, timed_rounds
FROM frontier
WHERE speedup_decode IS NOT NULL AND NOT is_full_depth
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id;
