-- Exits: Do rare tokens exit later than frequent ones?
-- The frequency of a token is counted in the run's own outputs of these documents: once (hapax), 2 to 9, 10 to 99, and
-- 100 or more times. If the exit layer does not depend on it, the gate does more than recognize frequent words.
-- share_equal_full: share of these tokens equal to full depth's token at the same position.
-- $model = *: models, a pattern
-- $method = *: methods, a pattern
-- $documents = 100: documents of each run, the first by key
WITH chosen AS (
    SELECT r.attempt_id, s.doc_key
    FROM runs AS r JOIN sample AS s USING (attempt_id)
    WHERE NOT r.is_full_depth AND r.model GLOB $model AND r.method GLOB $method
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY s.doc_key) <= $documents
),
counted AS (
    SELECT
        t.attempt_id, t.token_id, sum(t.exit_layer) AS depth, count_if(t.token_id = t.full_token_id) AS equal,
        count(*) AS times
    FROM token_exit AS t SEMI JOIN chosen USING (attempt_id, doc_key)
    WHERE t.choice IS NULL GROUP BY ALL
)
SELECT
    model, task_label, method, label, kv_policy, seed,
    CASE
        WHEN times = 1 THEN '1' WHEN times < 10 THEN '2..9' WHEN times < 100 THEN '10..99' ELSE '100..'
    END AS frequency,
    sum(depth) / sum(times) AS mean_exit_layer, sum(equal) / sum(times) AS share_equal_full,
    count(*) AS different_tokens, sum(times)::BIGINT AS n
FROM counted JOIN run_names USING (attempt_id)
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id, frequency
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, min(times);
