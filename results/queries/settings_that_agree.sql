-- Agreement: Which setting of each method runs fewest blocks and still says what full depth says?
-- Of the real decodes of a method on a model and task, the one of fewest blocks per token whose token_match (share of full
-- depth's tokens at the same position) is at least $agreement. Methods of which no setting agrees as much are left out.
-- $agreement = 0.99: share of full depth's tokens
SELECT model, task_label, method, label, kv_policy, seed, token_match, mean_blocks_run, blocks, speedup
FROM frontier
WHERE execution = 'real' AND NOT is_full_depth AND token_match >= $agreement
QUALIFY row_number() OVER (PARTITION BY model, task_label, method ORDER BY mean_blocks_run, token_match DESC, cell_id) = 1
ORDER BY model, task_label, mean_blocks_run, method;
