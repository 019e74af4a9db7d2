-- Where words are settled, by kind: one row per task, model, kind and block at which some of its tokens first match,
-- with their share; next to it the kind's means and half their 95 % intervals, clustered by document. If a model was
-- probed several times on a task, the run with the most documents counts.
WITH matches AS (
    SELECT attempt_id, token_kind, first_match AS block, count(*) AS tokens
    FROM probe_trace SEMI JOIN (SELECT attempt_id FROM plain_probes WHERE is_largest) USING (attempt_id)
    WHERE token_kind IS NOT NULL AND NOT random_weights
    GROUP BY ALL
)
SELECT r.task_label AS task, r.model, r.blocks, token_kind, block, round(tokens / n, 6) AS share,
       round(mean_first_match, 6) AS mean_first_match, round(first_match_half, 6) AS first_match_half,
       round(mean_stable_from, 6) AS mean_stable_from, round(stable_from_half, 6) AS stable_from_half, n
FROM exit_by_kind
JOIN matches USING (attempt_id, token_kind)
JOIN (SELECT attempt_id, task_label, model, blocks FROM runs) AS r USING (attempt_id)
ORDER BY task, r.model, token_kind, block;
