-- Where words are settled, by kind: one row per task, model, kind and block at which some of its tokens first match,
-- with their share; next to it the kind's means and half their 95 % intervals, clustered by document, as in the table
-- exit_by_kind. If a model was probed several times on a task, the run with the most documents counts.
WITH tokens AS (
    SELECT attempt_id, token_kind, doc_key, first_match, stable_from
    FROM probe_trace SEMI JOIN (SELECT attempt_id FROM plain_probes WHERE is_largest) USING (attempt_id)
    WHERE token_kind IS NOT NULL AND NOT random_weights
),
probed AS (
    SELECT attempt_id, token_kind, doc_key, count(*) AS n, sum(first_match) AS first_match,
           sum(stable_from) AS stable_from
    FROM tokens GROUP BY ALL
),
means AS (
    SELECT attempt_id, token_kind, sum(n) AS n, sum(first_match) / sum(n) AS mean_first_match,
           half_width(first_match, n) AS first_match_half, sum(stable_from) / sum(n) AS mean_stable_from,
           half_width(stable_from, n) AS stable_from_half
    FROM probed GROUP BY ALL
),
matches AS (
    SELECT attempt_id, token_kind, first_match AS block, count(*) AS tokens FROM tokens GROUP BY ALL
)
SELECT r.task_label AS task, r.model, r.blocks, token_kind, block, round(tokens / n, 6) AS share,
       round(mean_first_match, 6) AS mean_first_match, round(first_match_half, 6) AS first_match_half,
       round(mean_stable_from, 6) AS mean_stable_from, round(stable_from_half, 6) AS stable_from_half,
       CAST(n AS BIGINT) AS n
FROM means
JOIN matches USING (attempt_id, token_kind)
JOIN runs AS r USING (attempt_id)
ORDER BY task, r.model, token_kind, block;
