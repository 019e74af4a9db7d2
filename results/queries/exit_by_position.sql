-- How deep tokens go by their position in the output, for every run that skipped blocks: do later tokens exit earlier?
SELECT
    t.model, t.task_label, t.method, t.params, t.seed, t.position, avg(t.exit_layer) AS mean_exit_layer,
    any_value(r.blocks) AS blocks, count(*) AS n
FROM token_trace AS t JOIN runs AS r USING (attempt_id)
WHERE t.execution = 'real' AND NOT r.is_full_depth
GROUP BY t.model, t.task_label, t.method, t.params, t.seed, t.cell_id, t.position
ORDER BY t.model, t.task_label, t.method, t.params, t.seed, t.cell_id, t.position;
