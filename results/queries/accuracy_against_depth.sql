-- Choices: How much accuracy does depth buy on multiple-choice tasks?
-- Share of the documents whose most probable choice is the right one, against the block after which its tokens were
-- scored, for every run of a task with right choices, cheapest first. half_width is half of a 95% interval; speedup is
-- of the timing of the same setting, where there is one.
WITH documents AS (
    SELECT
        attempt_id, doc_key, bool_or(is_chosen AND is_right) AS right_chosen,
        bool_or(is_chosen AND full_is_chosen) AS same_chosen
    FROM choice_answers GROUP BY ALL HAVING bool_or(is_right)
),
accuracy AS (
    SELECT
        attempt_id, avg(right_chosen::INTEGER) AS accuracy, half_width(right_chosen::INTEGER, 1) AS half_width,
        avg(same_chosen::INTEGER) AS same_choice, count(*) AS n
    FROM documents GROUP BY ALL
),
depth AS (
    SELECT attempt_id, avg(exit_layer) AS mean_exit_layer FROM choice_trace WHERE is_chosen IS NOT NULL GROUP BY ALL
)
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.execution, r.random_weights, d.mean_exit_layer, r.blocks,
    a.accuracy, a.half_width, a.same_choice, f.speedup, a.n
FROM accuracy AS a
JOIN depth AS d USING (attempt_id)
JOIN runs AS r USING (attempt_id)
LEFT JOIN frontier AS f USING (attempt_id)
ORDER BY r.model, r.task_label, d.mean_exit_layer, r.method, r.label, r.kv_policy, r.cell_id;
