-- Choices: How do accuracy and agreement with full depth grow with depth on multiple-choice tasks?
-- One row per run of a multiple-choice task, cheapest first. accuracy: share of documents whose most probable choice is
-- the right one; same_choice: share whose most probable choice is full depth's. mean_exit_layer: block after which the
-- tokens of the choices were scored; half_width: half of the 95% interval of the accuracy; chance: accuracy of random
-- choices; choice_gap: mean absolute difference between the log-probability of a whole choice and full depth's, nats;
-- speedup: from the timing of the same setting, NULL if it was not timed.
WITH documents AS (
    SELECT
        attempt_id, doc_key, bool_or(is_chosen AND is_right) AS right_chosen,
        bool_or(is_chosen AND full_is_chosen) AS same_chosen, count_if(is_right) / count(*) AS chance,
        avg(abs(logprob - full_logprob)) AS choice_gap
    FROM choice_answers WHERE is_chosen IS NOT NULL GROUP BY ALL HAVING bool_or(is_right)
),
accuracy AS (
    SELECT
        attempt_id, avg(right_chosen::INTEGER) AS accuracy, half_width(right_chosen::INTEGER, 1) AS half_width,
        avg(chance) AS chance, avg(same_chosen::INTEGER) AS same_choice, avg(choice_gap) AS choice_gap, count(*) AS n
    FROM documents GROUP BY ALL
),
depth AS (
    SELECT attempt_id, avg(exit_layer) AS mean_exit_layer FROM token_trace
    WHERE choice IS NOT NULL AND is_chosen IS NOT NULL GROUP BY ALL
)
SELECT
    r.model, r.task_label, r.method, r.label, r.threshold, r.kv_policy, r.execution, r.random_weights, d.mean_exit_layer,
    r.blocks, a.accuracy, a.half_width, a.chance, a.same_choice, a.choice_gap, f.ideal_speedup_bytes, f.speedup, a.n
FROM accuracy AS a
JOIN depth AS d USING (attempt_id)
JOIN runs AS r USING (attempt_id)
LEFT JOIN frontier AS f USING (attempt_id)
ORDER BY r.model, r.task_label, d.mean_exit_layer, r.method, r.label, r.kv_policy, r.cell_id;
