-- Depth by kind of token, of words whose kind is known: where predictions settle (probes) and where methods emit (real
-- decodes), with 95 % intervals clustered by document.
WITH probed AS (
    SELECT attempt_id, token_kind, doc_key, count(*) AS n, sum(first_match) AS first_match,
           sum(stable_from) AS stable_from
    FROM probe_trace WHERE token_kind IS NOT NULL AND NOT random_weights GROUP BY ALL
),
probes AS (
    SELECT attempt_id, token_kind, sum(n) AS n, sum(first_match) / sum(n) AS mean_first_match,
           half_width(first_match, n) AS first_match_half, sum(stable_from) / sum(n) AS mean_stable_from,
           half_width(stable_from, n) AS stable_from_half
    FROM probed GROUP BY ALL
),
emitted AS (
    SELECT t.attempt_id, t.token_kind, t.doc_key, count(*) AS n, sum(t.exit_layer) AS exit_layer,
           -- after full depth's end, no token is equal
           CASE WHEN count(t.full_token_id) > 0 THEN count_if(t.token_id = t.full_token_id) END AS equal_full
    FROM token_exit AS t
    SEMI JOIN (SELECT attempt_id FROM runs WHERE NOT random_weights AND execution = 'real') USING (attempt_id)
    WHERE t.token_kind IS NOT NULL GROUP BY ALL
),
decodes AS (
    SELECT attempt_id, token_kind, sum(n) AS n, sum(exit_layer) / sum(n) AS mean_exit_layer,
           half_width(exit_layer, n) AS exit_layer_half, sum(coalesce(equal_full, 0)) / sum(n) AS share_equal_full,
           half_width(coalesce(equal_full, 0), n) AS equal_full_half, count(equal_full) > 0 AS compared
    FROM emitted GROUP BY ALL
)
SELECT r.model, r.task_label AS task, r.kind, r.method, r.params, r.kv_policy, r.conforms, k.token_kind,
       CAST(k.n AS BIGINT) AS n, round(mean_first_match, 6) AS mean_first_match,
       round(first_match_half, 6) AS first_match_half, round(mean_stable_from, 6) AS mean_stable_from,
       round(stable_from_half, 6) AS stable_from_half, round(mean_exit_layer, 6) AS mean_exit_layer,
       round(exit_layer_half, 6) AS exit_layer_half,
       CASE WHEN compared THEN round(share_equal_full, 6) END AS share_equal_full,
       CASE WHEN compared THEN round(equal_full_half, 6) END AS equal_full_half
FROM (FROM probes UNION ALL BY NAME FROM decodes) AS k
JOIN runs AS r USING (attempt_id)
ORDER BY r.model, task, r.kind, r.method, r.params, r.kv_policy, k.token_kind, r.cell_id;
