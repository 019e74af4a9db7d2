-- Agreement: Where does each method lie between random exits and the oracle?
-- The share of random's shortfall in agreement with full depth that it makes up, next to the blocks that each runs.
-- Random is the run whose mean exit layer is nearest; the oracle is that of the first match if there is one, and both
-- have the method's own KV policy if they were run with it.
WITH points AS (
    SELECT * FROM frontier WHERE execution = 'real' AND NOT is_full_depth
)
SELECT
    p.model, p.task_label, p.method, p.params, p.kv_policy, p.seed, p.mean_exit_layer,
    r.mean_exit_layer AS random_exit_layer,
    o.mean_exit_layer AS oracle_exit_layer, p.token_match, r.token_match AS random_match,
    (p.token_match - r.token_match) / nullif(o.token_match - r.token_match, 0) AS share_of_gap
FROM points AS p
JOIN points AS r ON r.method = 'random' AND r.model = p.model AND r.task_label = p.task_label
JOIN points AS o ON o.method = 'oracle' AND o.model = p.model AND o.task_label = p.task_label
WHERE p.method NOT IN ('random', 'oracle')
QUALIFY row_number() OVER (
    PARTITION BY p.cell_id
    ORDER BY
        r.kv_policy IS DISTINCT FROM p.kv_policy, abs(r.mean_exit_layer - p.mean_exit_layer), r.cell_id,
        (o.params ->> 'match') IS DISTINCT FROM 'first', o.kv_policy IS DISTINCT FROM p.kv_policy, o.cell_id
) = 1
ORDER BY p.model, p.task_label, p.method, p.params, p.kv_policy, p.seed, p.cell_id;
