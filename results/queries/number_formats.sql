-- Agreement: How does decoding in another number format change results?
-- Each real run in $dtype next to the run that differs only in its number format: same weights, documents, method,
-- parameters, generation, device, batch size and seed. Fitted methods were fitted in their own format. share_identical:
-- share of documents with the same tokens in both (NULL if an export omitted them). value_more: score in $dtype minus
-- that in $reference. half_width: half of its 95% interval over documents, NULL if the metric is not a mean over
-- documents. exit_layer_more: difference in mean exit layer.
-- $dtype = bfloat16: number format of weights and arithmetic
-- $reference = float32: number format to compare with
WITH points AS (
    SELECT
        f.*,
        -- The cell's identity without the number format, and without the fit, which depends on it.
        json_merge_patch(c.identity, '{"dtype": null, "fit_cell_id": null}')::VARCHAR AS asked
    FROM frontier AS f
    JOIN cell AS c ON c.cell_id = f.cell_id
    WHERE f.execution = 'real' AND NOT f.random_weights
),
pairs AS (
    SELECT p.*, o.attempt_id AS other_attempt_id, o.mean_exit_layer AS other_exit_layer
    FROM points AS p
    JOIN points AS o USING (asked)
    WHERE p.dtype = $dtype AND o.dtype = $reference
),
documents AS (
    SELECT
        p.attempt_id, count(*) AS documents,
        avg(CASE WHEN len(a.output_ids) = a.n_output AND len(b.output_ids) = b.n_output
            THEN (a.output_ids = b.output_ids)::INT END) AS share_identical,
        avg(a.score) AS mean_score, avg(b.score) AS other_mean_score, mean_half_width(a.score - b.score) AS half_width
    FROM pairs AS p
    JOIN answers AS a USING (attempt_id)
    JOIN answers AS b ON b.attempt_id = p.other_attempt_id AND b.doc_key = a.doc_key
    GROUP BY p.attempt_id
)
SELECT
    p.model, p.task_label, p.method, p.label, p.kv_policy, p.seed, d.documents, d.share_identical, p.metric,
    w.value AS reference_value, p.value, p.value - w.value AS value_more,
    -- Only if the metric is the mean of its scores of documents in both runs.
    CASE WHEN abs(d.mean_score - p.value) < 1e-6 AND abs(d.other_mean_score - w.value) < 1e-6
        THEN d.half_width END AS half_width,
    p.other_exit_layer AS reference_exit_layer, p.mean_exit_layer,
    p.mean_exit_layer - p.other_exit_layer AS exit_layer_more
FROM pairs AS p
JOIN documents AS d USING (attempt_id)
LEFT JOIN metric_values AS v ON v.attempt_id = p.attempt_id AND v.metric = p.metric AND v.is_current
LEFT JOIN metric_values AS w
    ON w.attempt_id = p.other_attempt_id AND w.metric = v.metric AND w.metric_version = v.metric_version
ORDER BY p.model, p.task_label, p.method, p.label, p.kv_policy, p.seed, p.cell_id;
