-- Exits: How many blocks does each setting run beyond the first that was right?
-- Over tokens before an output leaves full depth's: exit layer less the first block whose most probable token is already
-- full depth's, by the probe. wasted: blocks per token beyond it; early: share of tokens that left before it and said the
-- same nevertheless; exact: share that left there.
SELECT model, task_label, method, label, kv_policy, seed, wasted, early, exact, n
FROM (
    SELECT attempt_id, avg(greatest(exit_layer - first_match, 0)) AS wasted, avg((exit_layer < first_match)::INTEGER) AS early,
        avg((exit_layer = first_match)::INTEGER) AS exact, count(*) AS n
    FROM token_probe WHERE NOT diverged AND execution = 'real' AND method <> 'full' GROUP BY attempt_id
) JOIN run_names USING (attempt_id)
ORDER BY wasted DESC, model, task_label, method, label, kv_policy, seed, cell_id;
