-- Exits: How many tokens does the gate never let go, and where do the others leave?
-- share_last: tokens that ran all blocks because the gate did not open. A low mean depth with a high share_last is a
-- gate that is either sure at once or never; the quartiles are of the tokens that it let go.
SELECT
    t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, any_value(r.blocks) AS blocks,
    count_if(t.reason = 'last') / count(*) AS share_last,
    avg(t.exit_layer) AS mean_exit_layer,
    quantile_disc(t.exit_layer, [0.25, 0.5, 0.75]) FILTER (t.reason <> 'last') AS quartiles_let_go, count(*) AS n
FROM token_trace AS t JOIN runs AS r USING (attempt_id)
WHERE r.kind = 'quality' AND NOT r.is_full_depth
GROUP BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id
ORDER BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id;
