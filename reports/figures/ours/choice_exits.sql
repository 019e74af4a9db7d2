-- Mean exit layer of the tokens of choices, by whether the choice is right and whether it was chosen, with 95 % intervals
-- clustered by document (none where all tokens leave at one block); tokens: how many; n: documents that have such choices.
WITH
-- continues in shared/choice_runs.sql
exits AS (
    SELECT attempt_id, doc_key, is_right, is_chosen, sum(exit_layer) AS layers, count(*) AS tokens,
           min(exit_layer) AS lowest, max(exit_layer) AS highest
    FROM choice_trace WHERE is_right IS NOT NULL AND is_chosen IS NOT NULL GROUP BY ALL
),
means AS (
    SELECT attempt_id, is_right, is_chosen, sum(layers) / sum(tokens) AS mean_exit_layer,
           CASE WHEN min(lowest) < max(highest) THEN half_width(layers, tokens) END AS half,
           sum(tokens)::BIGINT AS tokens, count(*) AS n
    FROM exits GROUP BY ALL
)
SELECT s.model, s.task, s.setting, s.method, s.params, s.kv_policy, s.execution, s.blocks, m.is_right, m.is_chosen,
       m.mean_exit_layer, if(m.half IS NULL, NULL, greatest(1, m.mean_exit_layer - m.half)) AS low,
       if(m.half IS NULL, NULL, least(s.blocks, m.mean_exit_layer + m.half)) AS high, m.tokens, m.n
FROM shown AS s
JOIN means AS m USING (attempt_id)
WHERE NOT s.is_full_depth
ORDER BY s.model, s.task, s.setting, s.method, s.params, s.kv_policy, s.execution, m.is_right DESC, m.is_chosen DESC;
