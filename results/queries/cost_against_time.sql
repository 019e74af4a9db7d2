-- Cost and speed: How much of the saved work becomes saved time?
-- For decoding, without prompts: the ideal speed-up computed from the work of the timed answers, next to the measured
-- one. Work is counted in bytes read, or in floating-point operations at batch sizes above 1. realised: measured over
-- ideal speed-up. Far below 1, launches, gates and KV fills cost what the skipped blocks save. Above 1, the cost model
-- omits something, such as processor caches that hold a small model.
SELECT
    model, task_label, method, label, kv_policy, seed, device, dtype, batch_size,
    mean_blocks_run / blocks AS share_of_blocks, ideal_speedup_decode, speedup_decode, realised_fraction AS realised,
    timed_documents, timed_rounds
FROM frontier
WHERE speedup_decode IS NOT NULL AND NOT is_full_depth
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id;
