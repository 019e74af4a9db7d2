-- Confidence: At which blocks is the top probability overconfident?
-- One row per block: the mean of p1, the share of tokens whose top-1 is full depth's, and the expected calibration
-- error. This error is the mean distance between the two over bins of p1 of width 0.1, weighted by the number of
-- tokens. One threshold for all blocks is adequate only if the error is similar at all of them.
-- $model = *: models, a pattern
-- $documents = 50: documents of each probe, the first by key
WITH chosen AS (
    SELECT r.attempt_id, s.doc_key
    FROM plain_probes AS r JOIN sample AS s ON s.attempt_id = r.full_depth_attempt_id
    WHERE r.is_largest AND NOT r.random_weights AND r.model GLOB $model
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY s.doc_key) <= $documents
),
blocks AS (
    SELECT
        model, task_label, generate_subscripts(p1, 1) AS block, unnest(p1) AS p1,
        unnest(top1_id) = full_token_id AS agrees
    FROM probe_trace SEMI JOIN chosen USING (attempt_id, doc_key)
),
steps AS (
    SELECT
        model, task_label, block, least(floor(10 * p1), 9) AS step, sum(p1) AS confidence, count_if(agrees) AS agreeing,
        count(*) AS n
    FROM blocks GROUP BY ALL
)
SELECT
    model, task_label, block, sum(confidence) / sum(n) AS mean_p1, sum(agreeing) / sum(n) AS agreement,
    sum(abs(confidence - agreeing)) / sum(n) AS calibration_error, sum(n)::BIGINT AS n
FROM steps
GROUP BY model, task_label, block
ORDER BY model, task_label, block;
