-- Choices: At which threshold are choices still those of full depth?
-- Share of the documents whose most probable choice is full depth's, and how far log-probabilities of choices are from
-- full depth's (mean absolute difference, nats), by method and threshold. Runs of methods without a threshold have NULL.
WITH documents AS (
    SELECT
        attempt_id, doc_key, bool_or(is_chosen AND full_is_chosen) AS same_chosen,
        avg(abs(logprob - full_logprob)) AS logprob_gap
    FROM choice_answers WHERE full_is_chosen IS NOT NULL GROUP BY ALL
),
depth AS (
    SELECT attempt_id, avg(exit_layer) AS mean_exit_layer FROM choice_trace WHERE is_chosen IS NOT NULL GROUP BY ALL
)
SELECT
    r.model, r.task_label, r.method, r.label, r.threshold, r.kv_policy, r.execution,
    avg(same_chosen::INTEGER) AS same_choice, avg(logprob_gap) AS logprob_gap,
    any_value(e.mean_exit_layer) AS mean_exit_layer, any_value(r.blocks) AS blocks, count(*) AS n
FROM documents AS d
JOIN depth AS e USING (attempt_id)
JOIN runs AS r USING (attempt_id)
WHERE NOT r.is_full_depth
GROUP BY r.model, r.task_label, r.method, r.label, r.threshold, r.kv_policy, r.execution, r.cell_id
ORDER BY r.model, r.task_label, r.method, r.execution, threshold, r.label, r.kv_policy, r.cell_id;
