-- Exits: Do the first pieces of words exit later than the pieces that continue them?
-- One row per run and kind of piece. If continuation pieces exit much earlier, the speed-up depends on the tokenizer
-- and will be smaller with longer pieces. share_equal_full: share equal to full depth's token at the same position. The
-- first token of an output counts as a first piece, and so does every token if the tokenizer does not mark spaces;
-- unknown: no vocabulary is stored.
-- $model = *: models, a pattern
-- $method = *: methods, a pattern
-- $documents = 100: documents of each run, the first by key
WITH spelled AS (
    SELECT
        tokenizer_sha256, token_id, begins_word, CASE
            WHEN begins_word IS NULL THEN 'no text'
            WHEN regexp_full_match(text, '[▁Ġ]?\pP+') THEN 'punctuation'
        END AS apart
    FROM vocabulary
),
chosen AS (
    SELECT r.attempt_id, r.tokenizer_sha256, s.doc_key
    FROM runs AS r JOIN sample AS s USING (attempt_id)
    WHERE NOT r.is_full_depth AND r.model GLOB $model AND r.method GLOB $method
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY s.doc_key) <= $documents
),
pieces AS (
    SELECT
        t.attempt_id, t.exit_layer, t.token_id, t.full_token_id, CASE
            WHEN v.token_id IS NULL THEN 'unknown'
            WHEN v.apart IS NOT NULL THEN v.apart
            WHEN v.begins_word OR t.position = 1 THEN 'first piece'
            ELSE 'continuation'
        END AS piece
    FROM token_exit AS t
    JOIN chosen AS c ON c.attempt_id = t.attempt_id AND c.doc_key = t.doc_key
    LEFT JOIN spelled AS v ON v.tokenizer_sha256 = c.tokenizer_sha256 AND v.token_id = t.token_id
    WHERE t.choice IS NULL
)
SELECT
    model, task_label, method, label, kv_policy, seed, piece, avg(exit_layer) AS mean_exit_layer,
    count_if(token_id = full_token_id) / count(*) AS share_equal_full, count(*) AS n
FROM pieces JOIN run_names USING (attempt_id)
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id, piece
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, piece;
