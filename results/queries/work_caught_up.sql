-- Cost and speed: How many skipped blocks are run after all?
-- Where a KV policy runs skipped blocks later, or full depth verifies, a token costs more blocks than the layer it
-- left at. blocks_caught_up: executed beyond the exit layer, a token; share_of_skipped: of the blocks that the exits
-- skipped.
SELECT
    t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, avg(t.exit_layer) AS mean_exit_layer,
    avg(t.blocks_run) AS blocks_per_token, avg(t.blocks_run - t.exit_layer) AS blocks_caught_up,
    sum(t.blocks_run - t.exit_layer) / nullif(sum(r.blocks - t.exit_layer), 0) AS share_of_skipped, count(*) AS n
FROM token_trace AS t JOIN runs AS r USING (attempt_id)
WHERE r.kind = 'quality' AND NOT r.is_full_depth
GROUP BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id
ORDER BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id;
