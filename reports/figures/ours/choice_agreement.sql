-- Share of documents whose most probable choice is full depth's, against the threshold, with 95 % intervals over documents;
-- line: all of a setting but its threshold. Methods without a threshold have no place on this axis.
WITH
-- continues in shared/choice_runs.sql
agreement AS (
    SELECT attempt_id, avg(same_chosen::INTEGER) AS same_choice, half_width(same_chosen::INTEGER, 1) AS half
    FROM documents WHERE same_chosen IS NOT NULL GROUP BY ALL
)
SELECT s.model, s.task, s.setting, s.method, s.params, s.kv_policy, s.execution, s.line, s.threshold, a.same_choice,
       if(a.half IS NULL, NULL, greatest(0, a.same_choice - a.half)) AS same_low,
       if(a.half IS NULL, NULL, least(1, a.same_choice + a.half)) AS same_high, s.n
FROM shown AS s
JOIN agreement AS a USING (attempt_id)
WHERE NOT s.is_full_depth AND s.threshold IS NOT NULL
ORDER BY s.model, s.task, s.setting, s.method, s.execution, s.line, s.threshold, s.params;
