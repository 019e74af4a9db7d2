-- Quality: Which documents lose score, and how far before the error was the early exit?
-- differs_at: position of the first token that is not full depth's; exit_layer: exit layer of that token;
-- tokens_since_exit: distance to the latest token that exited early. 0 means a wrong exit. More means a token that ran
-- all blocks, with keys and values filled in by earlier exits. NULL: the output only ended earlier. Largest losses
-- first, in points (in errors if less is better).
-- $model = *: models, a pattern
-- $task = *: task labels of the suite, a pattern
-- $method = *: methods, a pattern
-- $rows = 100: documents to list
WITH lost AS (
    SELECT
        f.model, f.task_label, f.method, f.label, f.kv_policy, f.seed, f.cell_id, f.attempt_id, f.blocks, a.doc_key,
        f.metric, a.score, a.full_score,
        CASE WHEN f.lower_is_better THEN a.score - a.full_score ELSE a.full_score - a.score END AS loss
    FROM frontier AS f
    JOIN answers AS a USING (attempt_id)
    WHERE NOT f.is_full_depth AND f.model GLOB $model AND f.task_label GLOB $task AND f.method GLOB $method
        AND loss > 0
    ORDER BY loss DESC, f.cell_id, a.doc_key
    LIMIT $rows
),
tokens AS (
    SELECT
        t.attempt_id, t.doc_key, t.position, t.exit_layer, l.blocks,
        min(t.position) FILTER (t.token_id IS DISTINCT FROM t.full_token_id) OVER document AS differs_at
    FROM token_exit AS t JOIN lost AS l ON l.attempt_id = t.attempt_id AND l.doc_key = t.doc_key
    WINDOW document AS (PARTITION BY t.attempt_id, t.doc_key)
    -- Traces without full depth's tokens are excluded.
    QUALIFY count(t.full_token_id) OVER document > 0
),
errors AS (
    SELECT
        attempt_id, doc_key, any_value(differs_at) AS differs_at,
        max(exit_layer) FILTER (position = differs_at) AS exit_layer,
        any_value(differs_at) - max(position) FILTER (exit_layer < blocks AND position <= differs_at)
        AS tokens_since_exit
    FROM tokens GROUP BY ALL
)
SELECT
    l.model, l.task_label, l.method, l.label, l.kv_policy, l.seed, l.doc_key, l.metric, l.full_score, l.score,
    l.loss, e.differs_at, e.exit_layer, e.tokens_since_exit
FROM lost AS l LEFT JOIN errors AS e USING (attempt_id, doc_key)
ORDER BY loss DESC, l.cell_id, l.doc_key;
