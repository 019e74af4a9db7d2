-- Ideal exit of tokens that begin a word and of those that continue one, and their share, one row per task, model and
-- part; only models whose tokenizer splits words, so that there are both.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH chosen AS (SELECT attempt_id FROM plain_probes WHERE is_largest AND NOT random_weights),
documents AS (
    SELECT p.task_label, p.model, v.begins_word, p.attempt_id, p.doc_key, sum(p.first_match) AS exits, count(*) AS n,
           max(r.blocks) AS blocks
    FROM probe_trace AS p SEMI JOIN chosen USING (attempt_id)
    JOIN runs AS r USING (attempt_id)
    JOIN vocabulary AS v ON v.tokenizer_sha256 = r.tokenizer_sha256 AND v.token_id = p.token_id
    WHERE v.begins_word IS NOT NULL
    GROUP BY ALL
),
parts AS (
    SELECT task_label, model, begins_word, max(blocks) AS blocks, sum(exits) / sum(n) AS ideal_exit,
           half_width(exits, n) AS half_width, CAST(sum(n) AS BIGINT) AS n
    FROM documents
    GROUP BY task_label, model, begins_word
    QUALIFY count(*) OVER (PARTITION BY task_label, model) = 2
)
SELECT task_label AS task, model || coalesce(', ' || training, '') AS series, model,
       CASE WHEN begins_word THEN 'first piece of a word' ELSE 'later piece' END AS part, blocks,
       round(ideal_exit, 6) AS ideal_exit, round(half_width, 6) AS half_width,
       n / sum(n) OVER (PARTITION BY task_label, model) AS share, n
FROM parts
JOIN objectives USING (model)
ORDER BY task, series, model, part;
