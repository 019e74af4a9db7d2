-- Confidence: How often is an exit right, by confidence of the gate?
-- Exits of real decodes, up to and including the first token that differs, in ten groups of equal size per run. Groups
-- are ordered by the gate's score, the lowest first. Scores of different gates are not comparable; for some gates a
-- lower score is more confident, which reverses the trend. If even the least confident group nearly always agrees, the
-- threshold can be relaxed.
-- $model = *: models, a pattern
-- $method = *: methods, a pattern
-- $documents = 100: documents of each run, the first by key
WITH chosen AS (
    SELECT r.attempt_id, d.doc_key, d.is_known, d.first_divergence
    FROM runs AS r JOIN document_exit AS d USING (attempt_id)
    WHERE r.kind = 'quality' AND NOT r.is_full_depth AND r.model GLOB $model AND r.method GLOB $method
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY d.doc_key) <= $documents
),
grouped AS (
    SELECT
        t.attempt_id, t.exit_layer, t.score, t.token_id = t.full_token_id AS agrees,
        ntile(10) OVER (PARTITION BY t.attempt_id ORDER BY t.score, t.doc_key, t.position) AS tenth
    FROM token_exit AS t JOIN chosen AS c ON c.attempt_id = t.attempt_id AND c.doc_key = t.doc_key
    -- Traces without full depth's tokens are excluded.
    WHERE c.is_known AND t.reason = 'threshold' AND t.score IS NOT NULL AND coalesce(t.position <= c.first_divergence, true)
    WINDOW run AS (PARTITION BY t.attempt_id)
    QUALIFY min(t.score) OVER run < max(t.score) OVER run
)
SELECT
    model, task_label, method, label, kv_policy, seed, tenth, min(score) AS score_from, max(score) AS score_to,
    count_if(agrees) / count(*) AS agreement, avg(exit_layer) AS mean_exit_layer, count(*) AS n
FROM grouped JOIN run_names USING (attempt_id)
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id, tenth
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, tenth;
