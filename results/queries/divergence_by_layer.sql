-- Agreement: At which exit layers do outputs start to differ from full depth's?
-- Of the tokens whose context is still full depth's text, by exit layer: number of tokens, and share at which the
-- output starts to differ. At the last block the cause is earlier exits (their approximate keys and values), not the
-- exit of this token. Documents with missing positions are excluded.
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
    WHERE is_known -- excludes traces without full depth's tokens
)
SELECT
    model, task_label, method, label, kv_policy, seed, exit_layer, count(*) AS tokens,
    count(*) FILTER (position = first_divergence) AS departures,
    count(*) FILTER (position = first_divergence) / count(*) AS share_departing
FROM tokens JOIN run_names USING (attempt_id)
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id, exit_layer
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, exit_layer;
