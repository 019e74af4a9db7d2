-- Agreement: At which exit layers do outputs leave full depth's?
-- Of the tokens that follow nothing but full depth's text, by where they left: how many there are, and the share at
-- which the output departs. At the last block it is the damage done by earlier exits (their keys and values), not by
-- this one. Documents with missing positions are left out.
-- $model = *: models, a pattern
-- $method = *: methods, a pattern
-- $documents = 100: documents of each run, the first by key
WITH documents AS (
    SELECT r.attempt_id, d.is_known, d.first_divergence, d.exit_layer
    FROM runs AS r JOIN document_exit AS d USING (attempt_id)
    WHERE r.kind = 'quality' AND NOT r.is_full_depth AND r.model GLOB $model AND r.method GLOB $method
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY d.doc_key) <= $documents
),
tokens AS (
    SELECT
        attempt_id, first_divergence, exit_layer[:coalesce(first_divergence, len(exit_layer))] AS followed,
        unnest(followed) AS exit_layer, generate_subscripts(followed, 1) AS position
    FROM documents
    WHERE is_known -- a trace that has no token of full depth says nothing of it
)
SELECT
    model, task_label, method, label, kv_policy, seed, exit_layer, count(*) AS tokens,
    count(*) FILTER (position = first_divergence) AS departures,
    count(*) FILTER (position = first_divergence) / count(*) AS share_departing
FROM tokens JOIN run_names USING (attempt_id)
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id, exit_layer
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, exit_layer;
