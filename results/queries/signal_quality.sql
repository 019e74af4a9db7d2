-- Confidence: Which signal predicts best, at each block, whether a token may exit?
-- Area under the ROC curve: how often a signal is higher at a token whose top-1 is full depth's than at one whose top-1
-- is not (ties count half). 0.5 is uninformative, 1 is perfect. Signals: p1, the gap p1 - p2, negative entropy, and the
-- cosine similarity to the previous block. Blocks at which all tokens agree, or none, have no row.
-- $model = *: models, a pattern
-- $documents = 5: documents of each probe, the first by key
WITH chosen AS (
    SELECT r.attempt_id, s.doc_key
    FROM plain_probes AS r JOIN sample AS s ON s.attempt_id = r.full_depth_attempt_id
    WHERE r.is_largest AND NOT r.random_weights AND r.model GLOB $model
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY s.doc_key) <= $documents
),
blocks AS (
    SELECT
        model, task_label, generate_subscripts(p1, 1) AS block, unnest(top1_id) = full_token_id AS agrees,
        unnest(p1) AS p1, unnest(p1) - unnest(p2) AS gap, -unnest(entropy) AS entropy,
        unnest(cosine_previous) AS cosine_previous
    FROM probe_trace SEMI JOIN chosen USING (attempt_id, doc_key)
),
signals AS (
    UNPIVOT blocks ON p1, gap, entropy, cosine_previous INTO NAME signal VALUE score
),
counted AS (
    SELECT model, task_label, block, signal, score, count_if(agrees) AS agreeing, count_if(NOT agrees) AS other
    FROM signals GROUP BY ALL
),
below AS (
    SELECT
        *, sum(other) OVER (PARTITION BY model, task_label, block, signal ORDER BY score) - other / 2 AS others_below
    FROM counted
)
SELECT
    model, task_label, block, signal, sum(agreeing * others_below) / (sum(agreeing) * sum(other)) AS area,
    sum(agreeing)::BIGINT AS agreeing, sum(other)::BIGINT AS other
FROM below
GROUP BY model, task_label, block, signal
HAVING sum(agreeing) > 0 AND sum(other) > 0
ORDER BY model, task_label, block, area DESC, signal;
