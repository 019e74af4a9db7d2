-- Position of each setting between random exits and the oracle: its tokens equal to full depth's, those of random exits
-- at the same mean depth, and those of the oracle. One row per setting of a method on a model and task that also has
-- real runs of both. Random is interpolated between its budgets, and between the largest and full depth; below the
-- smallest budget it is that budget (shallower = true). Of an oracle's runs, the one with the first match.
WITH points AS (
    SELECT f.*, r.setting_id, m.ci_low AS match_low, m.ci_high AS match_high
    FROM frontier AS f
    JOIN runs AS r USING (attempt_id)
    LEFT JOIN metric_values AS m
        ON m.attempt_id = f.attempt_id AND m.metric = 'token_match' AND m.is_current
    WHERE f.execution = 'real' AND NOT f.random_weights AND f.token_match IS NOT NULL
),
random_exits AS (  -- with copied states, if it was run with them, on the same documents under the same seed (setting_id)
    SELECT setting_id, params -> 'mean_exit' AS budget, kv_policy, avg(mean_exit_layer) AS depth,
           avg(token_match) AS match
    FROM points WHERE method = 'random' GROUP BY setting_id, params -> 'mean_exit', kv_policy
    QUALIFY dense_rank() OVER (PARTITION BY setting_id ORDER BY kv_policy IS DISTINCT FROM 'state-copy', kv_policy) = 1
),
budgets AS (
    SELECT setting_id, depth, match FROM random_exits
    UNION ALL
    SELECT setting_id, blocks, 1 FROM points WHERE is_full_depth
),
below AS (
    SELECT p.cell_id, max(depth) AS depth, arg_max(b.match, b.depth) AS match
    FROM points AS p JOIN budgets AS b USING (setting_id) WHERE b.depth <= p.mean_exit_layer GROUP BY ALL
),
above AS (
    SELECT p.cell_id, min(depth) AS depth, arg_min(b.match, b.depth) AS match
    FROM points AS p JOIN budgets AS b USING (setting_id) WHERE b.depth >= p.mean_exit_layer GROUP BY ALL
),
oracles AS (
    SELECT setting_id, mean_exit_layer AS depth, token_match AS match
    FROM points WHERE method = 'oracle'
    QUALIFY row_number() OVER (
        PARTITION BY setting_id ORDER BY (params ->> 'match') IS DISTINCT FROM 'first', kv_policy IS DISTINCT FROM 'state-copy',
            cell_id
    ) = 1
),
placed AS (
    SELECT p.*, b.depth IS NULL AS shallower, o.depth AS oracle_depth, o.match AS oracle_match,
           coalesce(
               b.match + (a.match - b.match) * (p.mean_exit_layer - b.depth) / nullif(a.depth - b.depth, 0),
               b.match, a.match
           ) AS random_match
    FROM points AS p
    JOIN oracles AS o USING (setting_id)
    JOIN above AS a ON a.cell_id = p.cell_id
    LEFT JOIN below AS b ON b.cell_id = p.cell_id
    WHERE NOT p.is_full_depth AND p.method NOT IN ('random', 'oracle')
      AND p.setting_id IN (SELECT setting_id FROM random_exits)
)
SELECT model, task_label AS task, method, params, kv_policy, mean_exit_layer, blocks, token_match, match_low, match_high,
       random_match, shallower, oracle_match, oracle_depth, n,
       CASE WHEN oracle_match - random_match >= 0.05
            THEN (token_match - random_match) / (oracle_match - random_match) END AS share,
       CASE WHEN oracle_match - random_match >= 0.05
            THEN (match_low - random_match) / (oracle_match - random_match) END AS share_low,
       CASE WHEN oracle_match - random_match >= 0.05
            THEN (match_high - random_match) / (oracle_match - random_match) END AS share_high
FROM placed
ORDER BY model, task, method, params, kv_policy, cell_id;
