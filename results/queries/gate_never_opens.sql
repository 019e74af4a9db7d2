-- Exits: How many tokens never exit early, and where do the others exit?
-- share_last: share of tokens that ran all blocks because the gate did not open. A low mean depth with a high
-- share_last means that the gate opens at once or never. The quartiles are over the tokens that exited early.
WITH chosen AS (
    SELECT * FROM runs WHERE kind = 'quality' AND NOT is_full_depth
),
exits AS (
    SELECT
        attempt_id, count_if(reason = 'last') / count(*) AS share_last, avg(exit_layer) AS mean_exit_layer,
        quantile_disc(exit_layer, [0.25, 0.5, 0.75]) FILTER (reason <> 'last') AS quartiles_let_go, count(*) AS n
    FROM token_exit SEMI JOIN chosen USING (attempt_id) GROUP BY attempt_id
)
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.blocks, e.share_last, e.mean_exit_layer,
    e.quartiles_let_go, e.n
FROM exits AS e JOIN chosen AS r USING (attempt_id)
ORDER BY r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id;
