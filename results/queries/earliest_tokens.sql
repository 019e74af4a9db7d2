-- Exits: Which tokens exit earliest?
-- Of the tokens that a run emitted at least $times times, those with the lowest mean exit layer. share_equal_full:
-- share of them equal to full depth's token. Tokens that exit early and are wrong show where the gate is overconfident.
-- $model = *: models, a pattern
-- $method = *: methods, a pattern
-- $times = 3: minimum number of occurrences of a token
-- $documents = 100: documents of each run, the first by key
-- $rows = 5: tokens of each run
WITH chosen AS (
    SELECT r.attempt_id, s.doc_key
    FROM runs AS r JOIN sample AS s USING (attempt_id)
    WHERE NOT r.is_full_depth AND r.model GLOB $model AND r.method GLOB $method
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY s.doc_key) <= $documents
),
tokens AS (
    SELECT
        t.attempt_id, t.token_id, avg(t.exit_layer) AS mean_exit_layer,
        count_if(t.token_id = t.full_token_id) / count(*) AS share_equal_full, count(*) AS n
    FROM token_exit AS t SEMI JOIN chosen USING (attempt_id, doc_key)
    WHERE t.choice IS NULL GROUP BY t.attempt_id, t.token_id
    HAVING count(*) >= $times
    QUALIFY row_number() OVER (PARTITION BY t.attempt_id ORDER BY mean_exit_layer, n DESC, t.token_id) <= $rows
)
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, t.token_id, v.text, t.mean_exit_layer,
    t.share_equal_full, t.n
FROM tokens AS t
JOIN runs AS r USING (attempt_id)
LEFT JOIN vocabulary AS v ON v.tokenizer_sha256 = r.tokenizer_sha256 AND v.token_id = t.token_id
ORDER BY
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id, t.mean_exit_layer, t.n DESC, t.token_id;
