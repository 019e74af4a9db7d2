-- Agreement: At which exit layers do outputs leave full depth's?
-- Of the tokens that follow nothing but full depth's text, by where they left: how many there are, and the share at
-- which the output departs. At the last block it is the damage done by earlier exits (their keys and values), not by
-- this one.
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
        t.attempt_id, t.doc_key, t.position, t.exit_layer,
        min(t.position) FILTER (t.token_id IS DISTINCT FROM t.full_token_id) OVER document AS differs_at
    FROM token_exit AS t JOIN chosen AS c ON c.attempt_id = t.attempt_id AND c.doc_key = t.doc_key
    WINDOW document AS (PARTITION BY t.attempt_id, t.doc_key)
    -- Traces of older versions do not say what full depth emitted.
    QUALIFY count(t.full_token_id) OVER document > 0
)
SELECT
    model, task_label, method, label, kv_policy, seed, exit_layer, count(*) AS tokens,
    count(*) FILTER (position = differs_at) AS departures,
    count(*) FILTER (position = differs_at) / count(*) AS share_departing
FROM tokens JOIN run_names USING (attempt_id)
WHERE coalesce(position <= differs_at, true)
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id, exit_layer
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, exit_layer;
