-- Confidence: When a token exits with a wrong prediction, how many more blocks would have made it right?
-- Each document counts once, at the first token that differs from full depth's. blocks_missing: first block whose most
-- probable token is full depth's, minus the exit layer, mean over documents; share_next: how often one more block was
-- enough; confidence: mean score of the gate.
WITH probed AS MATERIALIZED (
    SELECT r.attempt_id, b.attempt_id AS probe_id
    FROM runs AS r JOIN plain_probes AS b ON b.full_depth_cell_id = r.full_depth_cell_id AND b.is_latest
    WHERE r.execution = 'real'
)
SELECT model, task_label, method, label, kv_policy, seed, blocks_missing, share_next, confidence, errors
FROM (
    SELECT attempt_id, avg(first_match - exit_layer) AS blocks_missing, avg((first_match - exit_layer = 1)::INTEGER) AS share_next,
        avg(score) AS confidence, count(*) AS errors
    FROM (
        SELECT
            d.attempt_id, d.exit_layer[d.first_divergence] AS exit_layer, p.first_match[d.first_divergence] AS first_match,
            d.divergence_score AS score
        FROM probed
        JOIN document_exit AS d ON d.attempt_id = probed.attempt_id AND d.is_known
        LEFT JOIN document_probe AS p ON p.attempt_id = probe_id AND p.doc_key = d.doc_key  -- LEFT keeps the order of joins
    ) WHERE exit_layer < first_match GROUP BY attempt_id
) JOIN run_names USING (attempt_id)
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id;
