-- Choices: Do right and chosen answers exit earlier than the others?
-- Exit layer of the tokens of choices, by whether the choice is right and whether it was chosen, for every
-- multiple-choice run that skipped blocks. mean_score is the mean confidence of the gate over the blocks at which it
-- was evaluated.
SELECT
    t.model, t.task_label, t.method, t.label, t.kv_policy, t.execution, t.is_right, t.is_chosen,
    avg(t.exit_layer) AS mean_exit_layer, any_value(r.blocks) AS blocks, avg(t.score) AS mean_score,
    avg(t.logprob) AS mean_logprob, avg(t.full_logprob) AS mean_full_logprob, count(*) AS n
FROM token_trace AS t JOIN runs AS r USING (attempt_id)
WHERE t.choice IS NOT NULL AND t.is_right IS NOT NULL AND NOT r.is_full_depth
GROUP BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.execution, t.cell_id, t.is_right, t.is_chosen
ORDER BY
    t.model, t.task_label, t.method, t.label, t.kv_policy, t.execution, t.cell_id, t.is_right DESC, t.is_chosen DESC;
