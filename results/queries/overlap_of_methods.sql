-- Exits: Do two methods let the same tokens exit early?
-- One row per pair of settings of different methods on one model and task, over tokens at the same position of both
-- outputs. same_layer: share with the same exit layer; correlation: between exit layers, NULL if one of them is
-- constant; both_equal: share at which both emitted full depth's token.
-- $method = calm-*: first method, a pattern
-- $other = *: second method, a pattern
WITH pairs AS MATERIALIZED (
    SELECT
        row_number() OVER ()::INTEGER AS pair, a.attempt_id AS first_id, b.attempt_id AS second_id, a.model, a.task_label, a.method,
        a.label, a.kv_policy, seed, b.method AS other_method, b.label AS other_label, b.kv_policy AS other_kv_policy
    FROM run_names AS a JOIN run_names AS b USING (model, task_label, seed, execution)
    WHERE a.method GLOB $method AND b.method GLOB $other AND a.method <> b.method AND execution = 'real'
        AND a.attempt_id IN (SELECT attempt_id FROM document_exit) AND b.attempt_id IN (SELECT attempt_id FROM document_exit)
),
-- Counted first: exit layers are few, and all results follow from the counts of their pairs.
counted AS (
    SELECT pair, x, y, both_equal, count(*) AS n
    FROM (
        SELECT
            pair, unnest(a.exit_layer) AS x, unnest(b.exit_layer) AS y,
            CASE WHEN a.is_known THEN unnest(a.is_equal) END AND CASE WHEN b.is_known THEN unnest(b.is_equal) END AS both_equal
        FROM pairs
        JOIN document_exit AS a ON a.attempt_id = first_id
        -- LEFT keeps the order of joins: all pairs of runs of a document are many more than the requested ones.
        LEFT JOIN document_exit AS b ON b.attempt_id = second_id AND b.doc_key = a.doc_key
    ) WHERE x IS NOT NULL AND y IS NOT NULL GROUP BY ALL
),
summed AS (
    SELECT
        model, task_label, method, label, kv_policy, seed, other_method, other_label, other_kv_policy,
        sum(c.n) FILTER (x = y) AS same, sum(c.n) AS n, sum(c.n * x) AS sx, sum(c.n * y) AS sy, sum(c.n * x * x) AS sxx,
        sum(c.n * y * y) AS syy, sum(c.n * x * y) AS sxy, sum(c.n) FILTER (both_equal) AS equal, sum(c.n) FILTER (both_equal IS NOT NULL) AS known
    FROM counted AS c JOIN pairs USING (pair) GROUP BY ALL
)
SELECT
    model, task_label, method, label, kv_policy, seed, other_method, other_label, other_kv_policy, coalesce(same, 0) / n AS same_layer,
    (n * sxy - sx * sy) / sqrt(nullif((n * sxx - sx * sx)::DOUBLE * (n * syy - sy * sy), 0)) AS correlation,
    CASE WHEN known > 0 THEN coalesce(equal, 0) / known END AS both_equal, n::BIGINT AS n
FROM summed ORDER BY ALL;
