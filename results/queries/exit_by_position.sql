-- Exits: Do later tokens exit earlier?
-- Mean exit layer by position of the token in the output, or in a given text, for every run that skipped blocks. Few
-- outputs reach high positions (n), and those are the long ones.
WITH depths AS (
    SELECT attempt_id, position, avg(exit_layer) AS mean_exit_layer, count(*) AS n FROM token_exit GROUP BY ALL
)
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, d.position, d.mean_exit_layer, r.blocks, d.n
FROM depths AS d JOIN runs AS r USING (attempt_id)
WHERE r.execution = 'real' AND NOT r.is_full_depth
ORDER BY r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id, d.position;
