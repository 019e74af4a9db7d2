-- Agreement: Which setting of each method runs the fewest blocks and still agrees with full depth?
-- Of the real decodes of a method on a model and task, the one with the fewest blocks per token whose token_match is at
-- least $agreement. token_match is the share of full depth's tokens at the same position. Methods without such a
-- setting are excluded.
-- $agreement = 0.99: share of full depth's tokens
SELECT model, task_label, method, label, kv_policy, seed, token_match, mean_blocks_run, blocks, speedup
FROM frontier
WHERE execution = 'real' AND NOT is_full_depth AND token_match >= $agreement
QUALIFY row_number() OVER (PARTITION BY model, task_label, method ORDER BY mean_blocks_run, token_match DESC, cell_id) = 1
ORDER BY model, task_label, mean_blocks_run, method;
