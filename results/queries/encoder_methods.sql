-- Encoders: How much of an encoder's score does each exit rule keep, and how many layers does it save?
-- One row per run. always_one_label: share of documents with the most frequent label, in percent; NULL for regression.
-- agrees_with_full: share of documents with full depth's answer.
WITH most_frequent AS (
    SELECT attempt_id, 100 * max(n) / sum(n) AS percent
    FROM (
        SELECT attempt_id, gold, count(DISTINCT doc_key) AS n
        FROM sequence_trace WHERE label_id IS NOT NULL GROUP BY attempt_id, gold
    )
    GROUP BY attempt_id
)
SELECT
    f.model, f.task_label, f.method, f.label, f.seed, f.n AS documents, f.metric, f.value, f.ci_low, f.ci_high,
    most_frequent.percent AS always_one_label, f.mean_exit_layer, f.blocks, 1 - f.mean_exit_layer / f.blocks AS layers_saved,
    f.token_match AS agrees_with_full, f.speedup, f.speedup_low, f.speedup_high
FROM frontier AS f
LEFT JOIN most_frequent ON most_frequent.attempt_id = f.attempt_id
WHERE EXISTS (SELECT 1 FROM sequence_blocks AS b WHERE b.attempt_id = f.attempt_id)
ORDER BY f.task_label, f.model, f.method, f.mean_exit_layer, f.label, f.seed, f.cell_id;
