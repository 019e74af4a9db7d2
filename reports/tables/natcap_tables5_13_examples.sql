-- One document of each task, the first by its key that every probed model answers: its answers token by token with the
-- exit layer of each, once with the ideal exits of full depth's answer and once as a real decode that exits there.
-- Answers are cut at 40 tokens.
WITH documents AS (
    SELECT task_label, doc_key, count(DISTINCT model) AS models
    FROM probe_by_document
    WHERE NOT random_weights AND block = 1
    GROUP BY ALL
),
chosen AS (
    SELECT task_label, doc_key FROM documents
    QUALIFY row_number() OVER (PARTITION BY task_label ORDER BY models DESC, doc_key) = 1
),
tokens AS (
    SELECT task_label, model, attempt_id, 'ideal exits of full depth' AS run, doc_key, position,
           token_id, first_match AS exit_layer
    FROM probe_trace SEMI JOIN chosen USING (task_label, doc_key)
    WHERE NOT random_weights
    UNION ALL
    SELECT t.task_label, t.model, t.attempt_id, 'real early exit, ' || t.kv_policy, t.doc_key, t.position,
           t.token_id, t.exit_layer
    FROM token_trace AS t SEMI JOIN chosen USING (task_label, doc_key)
    WHERE NOT t.random_weights AND t.method = 'oracle' AND t.params ->> 'match' = 'first' AND t.execution = 'real'
),
spelled AS (
    SELECT t.*, r.blocks, coalesce(replace(v.text, chr(10), '\n'), '#' || t.token_id) || '/' || t.exit_layer AS word
    FROM tokens AS t
    JOIN runs AS r USING (attempt_id)
    LEFT JOIN vocabulary AS v ON v.tokenizer_sha256 = r.tokenizer_sha256 AND v.token_id = t.token_id
)
SELECT task_label AS task, doc_key, model, coalesce(training, 'not known') AS training, run, max(blocks) AS blocks,
       string_agg(word, ' ' ORDER BY position) FILTER (position <= 40)
           || CASE WHEN count(*) > 40 THEN ' …' ELSE '' END AS answer,
       avg(exit_layer) AS mean_exit, count(*) AS n
FROM spelled
JOIN objectives USING (model)
GROUP BY task_label, doc_key, model, training, run, attempt_id
ORDER BY task, model, run, attempt_id;
