-- Confidence: When a gate lets a token go, how often is it right, by how sure the gate was?
-- Exits of real decodes, up to and with the first token that differs, in ten equal groups of each run by the gate's
-- score, the least sure first (scores of gates are on scales of their own, and for some less is surer: then the trend
-- is reversed). Where even the least sure group agrees nearly always, the threshold can go down.
-- $model = *: models, a pattern
-- $method = *: methods, a pattern
-- $documents = 100: documents of each run, the first by key
WITH chosen AS (
    SELECT r.attempt_id, s.doc_key
    FROM runs AS r JOIN sample AS s USING (attempt_id)
    WHERE NOT r.is_full_depth AND r.model GLOB $model AND r.method GLOB $method
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY s.doc_key) <= $documents
),
tokens AS (
    SELECT
        t.attempt_id, t.doc_key, t.position, t.exit_layer, t.token_id, t.full_token_id, t.score, t.reason,
        min(t.position) FILTER (t.token_id IS DISTINCT FROM t.full_token_id) OVER document AS differs_at
    FROM token_exit AS t JOIN chosen AS c ON c.attempt_id = t.attempt_id AND c.doc_key = t.doc_key
    WINDOW document AS (PARTITION BY t.attempt_id, t.doc_key)
    -- Traces of older versions do not say what full depth emitted.
    QUALIFY count(t.full_token_id) OVER document > 0
),
grouped AS (
    SELECT *, ntile(10) OVER (PARTITION BY attempt_id ORDER BY score, doc_key, position) AS tenth
    FROM tokens
    WHERE reason = 'threshold' AND score IS NOT NULL AND coalesce(position <= differs_at, true)
    WINDOW run AS (PARTITION BY attempt_id)
    QUALIFY min(score) OVER run < max(score) OVER run
)
SELECT
    model, task_label, method, label, kv_policy, seed, tenth, min(score) AS score_from, max(score) AS score_to,
    count_if(token_id = full_token_id) / count(*) AS agreement, avg(exit_layer) AS mean_exit_layer, count(*) AS n
FROM grouped JOIN run_names USING (attempt_id)
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id, tenth
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, tenth;
