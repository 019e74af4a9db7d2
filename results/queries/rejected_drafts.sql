-- Cost and speed: How many drafted tokens does full depth reject?
-- For methods that draft and verify. rejected_per_token: rejected drafts per token of the answer; share_corrected:
-- share of the answer's tokens that full depth chose in place of a draft; acceptance_rate: the run's metric of that
-- name.
SELECT
    t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, sum(t.rejected)::BIGINT AS rejected,
    sum(t.rejected) / count(*) AS rejected_per_token, count_if(t.rejected > 0) / count(*) AS share_corrected,
    any_value(m.value) AS acceptance_rate, count(*) AS n
FROM token_trace AS t
LEFT JOIN metric_values AS m ON m.attempt_id = t.attempt_id AND m.metric = 'acceptance_rate' AND m.is_current
WHERE t.rejected IS NOT NULL
GROUP BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id
ORDER BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id;
