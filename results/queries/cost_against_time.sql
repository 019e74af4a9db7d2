-- Cost and speed: How much of the saved work becomes saved time?
-- Speed-up that the cost model allows, by bytes moved and by floating-point operations (real, by what the tokens
-- ran), beside the measured one. realised: measured over allowed by bytes, of the whole request. Far below 1:
-- launches, gates and fills cost what the blocks save; above 1: the cost model leaves something out.
SELECT
    model, task_label, method, params, kv_policy, seed, device, dtype, batch_size,
    mean_exit_layer / blocks AS share_of_blocks,
    ideal_speedup_flops, ideal_speedup_bytes, speedup, speedup_low, speedup_high,
    speedup / nullif(ideal_speedup_bytes, 0) AS realised
FROM frontier
WHERE speedup IS NOT NULL AND NOT is_full_depth
ORDER BY model, task_label, method, params, kv_policy, seed, cell_id;
