-- Effect of the KV policy on the same gate at the same threshold: share of tokens equal to full depth's
-- by position, over the whole answer, and the task's score. For each task, the gate with the most KV policies,
-- of several the one whose tokens agree least. A replay of the gate (simulated) changes neither cache nor tokens.
-- One row per policy and place: position (mean of the combined positions), or NULL for the whole answer.
WITH points AS (
    SELECT *, CAST(json_merge_patch(params, '{"kv_policy": null}') AS VARCHAR) AS gate
    FROM frontier WHERE NOT random_weights AND NOT is_full_depth
),
gates AS (
    SELECT task_label, setting_id, method, gate
    FROM points WHERE execution = 'real'
    GROUP BY task_label, setting_id, method, gate
    HAVING count(DISTINCT kv_policy) > 1
    QUALIFY row_number() OVER (
        PARTITION BY task_label ORDER BY count(DISTINCT kv_policy) DESC, avg(token_match), setting_id, method, gate
    ) = 1
),
members AS (
    SELECT p.*, if(execution = 'simulated', 'simulated', kv_policy) AS policy
    FROM points AS p SEMI JOIN gates AS g
        ON g.setting_id = p.setting_id AND g.method = p.method AND g.gate = p.gate
),
tokens AS (
    SELECT m.attempt_id, t.doc_key, t.position,
           coalesce(t.token_id = t.full_token_id, false)::INT AS equal,  -- after full depth's end, no token is equal
           greatest(1, ceil(max(t.position) OVER (PARTITION BY m.setting_id) / 8)) AS width
    FROM members AS m JOIN token_exit AS t ON t.attempt_id = m.attempt_id
    WHERE t.choice IS NULL AND t.position <= 64
),
by_document AS (
    SELECT attempt_id, doc_key, ceil(position / width) AS place, sum(equal) AS equal, count(*) AS n,
           sum(position) AS positions
    FROM tokens GROUP BY ALL
),
by_place AS (
    SELECT attempt_id, place, round(sum(positions) / sum(n), 6) AS position, round(sum(equal) / sum(n), 6) AS value,
           coalesce(round(half_width(equal, n), 6), 1) AS half, count(*) AS n
    FROM by_document GROUP BY attempt_id, place
)
SELECT m.task_label AS task, m.model, m.method, m.gate, m.policy, 'match' AS measure, b.position,
       b.value, greatest(0.0, b.value - b.half) AS low, least(1.0, b.value + b.half) AS high, NULL AS metric, NULL AS full_value, b.n
FROM members AS m JOIN by_place AS b USING (attempt_id)
UNION ALL
SELECT m.task_label, m.model, m.method, m.gate, m.policy, 'match', NULL, m.token_match, v.ci_low,
       v.ci_high, NULL, NULL, m.n
FROM members AS m
LEFT JOIN metric_values AS v ON v.attempt_id = m.attempt_id AND v.metric = 'token_match' AND v.is_current
UNION ALL
SELECT m.task_label, m.model, m.method, m.gate, m.policy, 'quality', NULL, m.value, m.ci_low, m.ci_high,
       m.metric, m.full_value, m.n
FROM members AS m WHERE m.value IS NOT NULL
ORDER BY task, model, policy, measure, position, n;
