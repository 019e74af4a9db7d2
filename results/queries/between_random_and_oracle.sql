-- Agreement: Where does each method lie between random exits and the oracle?
-- The share of random's shortfall in agreement with full depth that it makes up, next to where each leaves, all on the
-- same documents under the same settings and seed. Random is interpolated between the mean exit layers at which it was
-- run, and full depth; below the smallest it is that one (shallower). The oracle is that of the first match if there is
-- one. Both have the method's own KV policy if they were run with it, else state-copy.
WITH points AS (
    SELECT f.*, r.setting_id FROM frontier AS f JOIN runs AS r USING (attempt_id) WHERE f.execution = 'real'
),
compared AS (
    SELECT * FROM points
    WHERE NOT is_full_depth AND method NOT IN ('random', 'oracle') AND mean_exit_layer IS NOT NULL
),
random_exits AS (
    SELECT p.cell_id, r.params -> 'mean_exit' AS budget, avg(r.mean_exit_layer) AS depth, avg(r.token_match) AS match
    FROM compared AS p JOIN points AS r ON r.setting_id = p.setting_id AND r.method = 'random'
    GROUP BY p.cell_id, p.kv_policy, budget, r.kv_policy
    QUALIFY dense_rank() OVER (
        PARTITION BY p.cell_id
        ORDER BY r.kv_policy IS DISTINCT FROM p.kv_policy, r.kv_policy IS DISTINCT FROM 'state-copy', r.kv_policy
    ) = 1
),
budgets AS (
    SELECT cell_id, depth, match FROM random_exits
    UNION ALL
    SELECT DISTINCT p.cell_id, p.blocks, 1 FROM compared AS p SEMI JOIN random_exits USING (cell_id)
),
neighbours AS (
    SELECT
        p.cell_id, max(b.depth) FILTER (b.depth <= p.mean_exit_layer) AS below,
        arg_max(b.match, b.depth) FILTER (b.depth <= p.mean_exit_layer) AS match_below,
        min(b.depth) FILTER (b.depth >= p.mean_exit_layer) AS above,
        arg_min(b.match, b.depth) FILTER (b.depth >= p.mean_exit_layer) AS match_above
    FROM compared AS p JOIN budgets AS b USING (cell_id)
    GROUP BY p.cell_id
),
placed AS (
    SELECT
        p.*, o.mean_exit_layer AS oracle_exit_layer, o.token_match AS oracle_match, n.below IS NULL AS shallower,
        coalesce(
            n.match_below
            + (n.match_above - n.match_below) * (p.mean_exit_layer - n.below) / nullif(n.above - n.below, 0),
            n.match_below, n.match_above
        ) AS random_match
    FROM compared AS p
    JOIN neighbours AS n USING (cell_id)
    JOIN points AS o ON o.setting_id = p.setting_id AND o.method = 'oracle'
    QUALIFY row_number() OVER (
        PARTITION BY p.cell_id
        ORDER BY
            (o.params ->> 'match') IS DISTINCT FROM 'first', o.kv_policy IS DISTINCT FROM p.kv_policy,
            o.kv_policy IS DISTINCT FROM 'state-copy', o.cell_id
    ) = 1
)
SELECT
    model, task_label, method, label, kv_policy, seed, mean_exit_layer, shallower, oracle_exit_layer, token_match,
    random_match, oracle_match, (token_match - random_match) / nullif(oracle_match - random_match, 0) AS share_of_gap
FROM placed
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id;
