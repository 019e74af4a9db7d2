-- Agreement: How does each method compare with random exits (0) and the oracle (1)?
-- share_of_gap: (method - random) / (oracle - random) in agreement with full depth, next to the exit layer of each.
SELECT
    f.model, f.task_label, f.method, f.label, f.kv_policy, f.seed, f.mean_exit_layer, o.shallower, o.oracle_exit_layer,
    f.token_match, o.random_match, o.oracle_match, o.share_of_gap
FROM random_to_oracle AS o
JOIN frontier AS f USING (attempt_id)
ORDER BY f.model, f.task_label, f.method, f.label, f.kv_policy, f.seed, f.cell_id;
