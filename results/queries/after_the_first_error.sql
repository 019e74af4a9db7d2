-- Agreement: What happens behind the first token that differs from full depth's?
-- Before and behind it (the differing token itself is behind): tokens, share that are full depth's at the same position, exit layer.
-- A share near 0 behind it says that outputs never come back.
WITH documents AS (
    SELECT attempt_id, doc_key, min(position) FILTER (token_id IS DISTINCT FROM full_token_id) AS differs_at
    FROM token_exit SEMI JOIN (SELECT attempt_id FROM run_names WHERE execution = 'real' AND method <> 'full') USING (attempt_id)
    GROUP BY attempt_id, doc_key
    -- Traces of older versions do not say what full depth emitted.
    HAVING count(full_token_id) > 0
),
sides AS (
    SELECT
        t.attempt_id, coalesce(t.position >= d.differs_at, false) AS diverged,
        avg(coalesce(t.token_id = t.full_token_id, false)::INTEGER) AS share_equal, avg(t.exit_layer) AS mean_exit_layer,
        count(*) AS tokens
    FROM token_exit AS t JOIN documents AS d ON d.attempt_id = t.attempt_id AND d.doc_key = t.doc_key
    GROUP BY ALL
)
SELECT model, task_label, method, label, kv_policy, seed, diverged, share_equal, mean_exit_layer, tokens
FROM sides JOIN run_names USING (attempt_id)
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, diverged;
