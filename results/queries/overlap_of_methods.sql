-- Exits: Do two methods let the same tokens go early?
-- Every two settings of different methods on one model and task, over tokens at the same place of both outputs. same_layer: share that
-- left after the same block; correlation: of exit layers, NULL where one of them is constant; both_equal: share where both said what full depth said.
-- $method = calm-*: the first method, a pattern
-- $other = *: the second, a pattern
SELECT
    a.model, a.task_label, a.method, a.label, a.kv_policy, seed, b.method AS other_method, b.label AS other_label, b.kv_policy AS other_kv_policy,
    avg((a.exit_layer = b.exit_layer)::INTEGER) AS same_layer, nullif(corr(a.exit_layer, b.exit_layer), 'nan') AS correlation,
    avg((a.equal_full AND b.equal_full)::INTEGER) AS both_equal, count(*) AS n
FROM token_trace AS a JOIN token_trace AS b USING (model, task_label, seed, execution, doc_key, position)
WHERE a.method GLOB $method AND b.method GLOB $other AND a.method <> b.method AND execution = 'real'
GROUP BY ALL ORDER BY ALL;
