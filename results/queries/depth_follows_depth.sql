-- Exits: Do tokens that need many blocks come in runs?
-- correlation: between the exit layers of adjacent tokens of an output, over all pairs. Near 0, depth depends on the
-- single token. If it is high, depth depends on the passage; then a decaying threshold or a batch of similar rows
-- helps. full_after_early: of the tokens after an early exit, the share that ran all blocks; these tokens need keys and
-- values of skipped blocks. Documents with missing positions are excluded.
-- $model = *: models, a pattern
-- $method = *: methods, a pattern
-- $documents = 100: documents of each run, the first by key
WITH documents AS (
    SELECT r.attempt_id, r.blocks, d.exit_layer
    FROM runs AS r JOIN document_exit AS d USING (attempt_id)
    WHERE r.kind = 'quality' AND NOT r.is_full_depth AND r.model GLOB $model AND r.method GLOB $method
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY d.doc_key) <= $documents
),
pairs AS (
    SELECT attempt_id, blocks, unnest(exit_layer[2:]) AS exit_layer, unnest(exit_layer[:-2]) AS exit_layer_before
    FROM documents
)
SELECT
    model, task_label, method, label, kv_policy, seed,
    CASE
        WHEN stddev_pop(exit_layer) > 0 AND stddev_pop(exit_layer_before) > 0 THEN corr(exit_layer, exit_layer_before)
    END AS correlation,
    avg((exit_layer = blocks)::INTEGER) FILTER (exit_layer_before < blocks) AS full_after_early, count(*) AS pairs
FROM pairs JOIN run_names USING (attempt_id)
WHERE exit_layer_before IS NOT NULL
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id;
