-- One row a model, task and setting of a method: quality, depth and speed beside full depth.
-- A speed-up is inside the noise floor when its interval overlaps that of full depth timed against itself (A/A).
SELECT model, task_label AS task, conditions AS setting,
       method, params, kv_policy, execution, random_weights,
       metric, value, ci_low, ci_high, full_value, delta, token_match, mean_exit_layer, mean_blocks_run, blocks,
       is_full_depth,
       speedup, speedup_low, speedup_high, aa_low, aa_high,
       coalesce(NOT is_full_depth AND speedup_low <= aa_high AND speedup_high >= aa_low, false) AS inside_noise_floor,
       speedup_per_token, tokens_per_request, full_tokens_per_request, is_other_length, speedup_decode, ideal_speedup_decode,
       realised_fraction, ideal_speedup_bytes, n, timed_documents, timed_rounds, conforms, cell_id
FROM frontier
ORDER BY model, task, setting, metric, execution, method, mean_exit_layer, params, cell_id;
