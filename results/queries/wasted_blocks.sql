-- Exits: How many blocks does each setting run after the first block that was right?
-- For tokens before the output differs from full depth's: exit layer minus the first block whose most probable token is
-- full depth's, by the probe. wasted: excess blocks per token; early: share of tokens that exited before that block and
-- still emitted the same token; exact: share that exited there.
WITH probed AS MATERIALIZED (
    SELECT r.attempt_id, b.attempt_id AS probe_id, r.first_token = 'full' AS first_is_full
    FROM runs AS r JOIN plain_probes AS b ON b.full_depth_cell_id = r.full_depth_cell_id AND b.is_latest
    WHERE r.execution = 'real' AND r.method <> 'full'
)
SELECT model, task_label, method, label, kv_policy, seed, wasted, early, exact, n
FROM (
    SELECT attempt_id, avg(greatest(exit_layer - first_match, 0)) AS wasted, avg((exit_layer < first_match)::INTEGER) AS early,
        avg((exit_layer = first_match)::INTEGER) AS exact, count(*) AS n
    FROM (
        SELECT
            d.attempt_id, unnest(d.exit_layer[:coalesce(d.first_divergence - 1, len(d.exit_layer))]) AS exit_layer,
            unnest(p.first_match) AS first_match, unnest(range(1, len(p.first_match) + 1)) AS position, first_is_full
        FROM probed
        JOIN document_exit AS d ON d.attempt_id = probed.attempt_id AND d.is_known
        LEFT JOIN document_probe AS p ON p.attempt_id = probe_id AND p.doc_key = d.doc_key  -- LEFT keeps the order of joins
    )
    WHERE exit_layer IS NOT NULL AND first_match IS NOT NULL
        AND NOT (position = 1 AND first_is_full)  -- read from the prompt's own pass, it could not leave
    GROUP BY attempt_id
) JOIN run_names USING (attempt_id)
ORDER BY wasted DESC, model, task_label, method, label, kv_policy, seed, cell_id;
