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
        r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id, r.attempt_id, r.blocks, s.doc_key,
        f.metric,
        (s.scores ->> f.metric)::DOUBLE AS score, (o.scores ->> f.metric)::DOUBLE AS full_score,
        CASE WHEN f.lower_is_better THEN score - full_score ELSE full_score - score END AS loss
    FROM frontier AS f
    JOIN runs AS r USING (attempt_id)
    JOIN sample AS s USING (attempt_id)
    JOIN sample AS o ON o.attempt_id = r.full_depth_attempt_id AND o.doc_key = s.doc_key
    WHERE NOT r.is_full_depth AND r.model GLOB $model AND r.task_label GLOB $task AND r.method GLOB $method
        AND loss > 0
    ORDER BY loss DESC, r.cell_id, s.doc_key
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
