-- Agreement: How does each method compare with random exits (0) and the oracle (1)?
-- share: (method - random) / (oracle - random) in agreement with full depth, next to the exit layer of each. All runs
-- have the same documents, settings and seed. Random exits are interpolated between the mean exit layers at which they
-- were run and full depth; below the smallest of these layers that run is used (shallower). The oracle exits at the
-- first match if such a run exists. Random exits and the oracle have the method's KV policy if they were run with it,
-- else state-copy.
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
