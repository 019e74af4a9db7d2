-- Exits: Do later tokens exit earlier?
-- How deep tokens go by their position in the output, for every run that skipped blocks. At far positions few outputs
-- are left (n), and those are the long ones.
SELECT
    t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.position, avg(t.exit_layer) AS mean_exit_layer,
    any_value(r.blocks) AS blocks, count(*) AS n
FROM token_trace AS t JOIN runs AS r USING (attempt_id)
WHERE t.execution = 'real' AND NOT r.is_full_depth
GROUP BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id, t.position
ORDER BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id, t.position;
