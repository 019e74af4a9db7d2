-- Agreement: What does decoding in another number format change?
-- Each real run in $dtype beside the run that differs from it in the number format alone (methods that are fitted were
-- fitted in it): same weights, documents, method, parameters, generation, device, batch size and seed. share_identical:
-- of the documents, those with the same tokens in both (NULL where an export left them out); value_more: score in
-- $dtype minus that in $reference; half_width: of its 95% interval over documents, NULL where the metric is no mean
-- over documents; exit_layer_more: how much deeper tokens go.
-- $dtype = bfloat16: number format of weights and arithmetic
-- $reference = float32: number format to compare with
WITH points AS (
    SELECT
        f.*,
        -- What was asked, without the number format; the fit is another one because of it.
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
        avg((a.scores ->> p.metric)::DOUBLE) AS mean_score,
        avg((b.scores ->> p.metric)::DOUBLE) AS other_mean_score,
        mean_half_width((a.scores ->> p.metric)::DOUBLE - (b.scores ->> p.metric)::DOUBLE) AS half_width
    FROM pairs AS p
    JOIN answers AS a USING (attempt_id)
    JOIN answers AS b ON b.attempt_id = p.other_attempt_id AND b.doc_key = a.doc_key
    GROUP BY p.attempt_id
)
SELECT
    p.model, p.task_label, p.method, p.label, p.kv_policy, p.seed, d.documents, d.share_identical, p.metric,
    w.value AS reference_value, p.value, p.value - w.value AS value_more,
    -- Of all metrics only a mean is the mean of its scores of documents, in both runs.
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
