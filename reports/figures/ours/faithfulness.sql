-- Agreement of each setting's answers with full depth's: share of equal tokens, share of an answer before the first
-- difference, and share of these differences that are near-ties, where full depth's two best tokens are less than 0.1
-- nats apart. One row per setting that was really run; intervals over documents. An answer that continues after full
-- depth's end differs there, which is not a near-tie. Runs whose ids were omitted by an export are excluded.
WITH pairs AS (
    SELECT r.attempt_id, r.full_depth_cell_id, a.doc_key, f.n_output, a.first_divergence AS first_difference
    FROM runs AS r
    JOIN answers AS a USING (attempt_id)
    JOIN sample AS f ON f.attempt_id = r.full_depth_attempt_id AND f.doc_key = a.doc_key
    WHERE NOT r.is_full_depth AND NOT r.random_weights AND a.equal_tokens IS NOT NULL
),
margins AS (  -- of each token of full depth's answers at which some run's answer first differs
    SELECT r.full_depth_cell_id, p.doc_key, p.position, ln(p.p1[-1]) - ln(p.p2[-1]) AS margin
    FROM probe_trace AS p
    JOIN plain_probes AS r ON r.attempt_id = p.attempt_id AND r.is_latest
    SEMI JOIN pairs AS d
        ON d.full_depth_cell_id = r.full_depth_cell_id AND d.doc_key = p.doc_key AND d.first_difference = p.position
),
told AS (
    SELECT d.*, (first_difference IS NULL)::INT AS identical,
           least(coalesce(first_difference - 1, n_output), n_output) AS before,
           -- NULL if nothing differs, or nothing was probed
           CASE WHEN first_difference <= n_output THEN (m.margin < 0.1)::INT
                WHEN first_difference > n_output THEN 0 END AS near_tie
    FROM pairs AS d
    LEFT JOIN margins AS m
        ON m.full_depth_cell_id = d.full_depth_cell_id AND m.doc_key = d.doc_key AND m.position = d.first_difference
),
summed AS (
    SELECT attempt_id, count(*) AS n, avg(identical) AS identical, sum(before) / sum(n_output) AS before,
           half_width(before, n_output) AS before_half, count(near_tie) AS divergences
    FROM told GROUP BY attempt_id
),
ties AS (  -- Wilson's interval: few answers differ, and often all or none of them in a near-tie
    SELECT attempt_id, avg(near_tie) AS near_tie, count(*) AS n,
           (avg(near_tie) + 1.9208 / count(*)) / (1 + 3.8416 / count(*)) AS middle,
           1.96 / (1 + 3.8416 / count(*)) * sqrt(
               avg(near_tie) * (1 - avg(near_tie)) / count(*) + 0.9604 / count(*) ** 2
           ) AS half
    FROM told WHERE near_tie IS NOT NULL GROUP BY attempt_id
)
SELECT f.model, f.task_label AS task, f.method, f.params, f.kv_policy, f.token_match AS match, m.ci_low AS match_low,
       m.ci_high AS match_high, s.identical, round(s.before, 6) AS before,
       CASE WHEN s.before_half IS NOT NULL THEN round(greatest(0.0, s.before - s.before_half), 6) END AS before_low,
       CASE WHEN s.before_half IS NOT NULL THEN round(least(1.0, s.before + s.before_half), 6) END AS before_high,
       s.divergences, round(t.near_tie, 6) AS near_tie, round(t.middle - t.half, 6) AS near_tie_low,
       round(t.middle + t.half, 6) AS near_tie_high, s.n
FROM frontier AS f
JOIN summed AS s USING (attempt_id)
LEFT JOIN ties AS t USING (attempt_id)
LEFT JOIN metric_values AS m ON m.attempt_id = f.attempt_id AND m.metric = 'token_match' AND m.is_current
WHERE f.execution = 'real' AND f.token_match IS NOT NULL  -- no token is chosen in tasks of choices
ORDER BY f.model, task, f.method, f.params, f.kv_policy, f.cell_id;
