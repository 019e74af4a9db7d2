-- Accuracy of multiple-choice tasks: the share of documents whose most probable choice is right, against the mean exit
-- layer of the tokens of choices, the ideal speed-up by numbers read, and the speed-up; 95 % intervals over documents; line: all of a setting but its
-- threshold; chance: the accuracy of a choice drawn at random.
WITH
-- continues in shared/choice_runs.sql
depth AS (
    SELECT attempt_id, avg(exit_layer) AS mean_exit_layer FROM choice_trace WHERE is_chosen IS NOT NULL GROUP BY ALL
),
accuracy AS (
    SELECT attempt_id, avg(right_chosen::INTEGER) AS accuracy, half_width(right_chosen::INTEGER, 1) AS half,
           avg(chance) AS chance
    FROM documents WHERE right_chosen IS NOT NULL GROUP BY ALL
)
SELECT s.model, s.task, s.setting, s.method, s.params, s.kv_policy, s.execution, s.is_full_depth, s.line, s.threshold,
       s.blocks, d.mean_exit_layer, a.accuracy,
       if(a.half IS NULL, NULL, greatest(0, a.accuracy - a.half)) AS accuracy_low,
       if(a.half IS NULL, NULL, least(1, a.accuracy + a.half)) AS accuracy_high, a.chance,
       s.ideal_speedup_bytes, s.speedup, s.speedup_low, s.speedup_high, s.speed_status, s.aa_low, s.aa_high,
       coalesce(NOT s.is_full_depth AND s.speedup_low <= s.aa_high AND s.speedup_high >= s.aa_low, false)
           AS inside_noise_floor,
       s.timed_documents, s.n
FROM shown AS s
JOIN accuracy AS a USING (attempt_id)
JOIN depth AS d USING (attempt_id)
ORDER BY s.model, s.task, s.setting, s.method, s.execution, s.line, s.threshold, d.mean_exit_layer, s.params;
