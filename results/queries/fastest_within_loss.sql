-- Cost and speed: What is the fastest method with almost no loss?
-- For each model and task, the largest measured speed-up among runs whose score is at most $loss points worse than full
-- depth's. Metrics are on a scale of 0 to 100. Full depth itself is listed if nothing is faster. Check the interval
-- too: a loss smaller than its interval is not shown to be small. is_other_length: answers are more than 5% shorter or
-- longer than full depth's, which also changes the speed-up; speedup_per_token corrects for it.
-- $loss = 1: points of the task's headline metric
SELECT
    model, task_label, method, label, kv_policy, seed, metric, value, ci_low, ci_high, full_value, delta, mean_blocks_run,
    token_match, speedup, speedup_low, speedup_per_token, is_other_length, timed_documents, timed_rounds
FROM frontier
WHERE execution = 'real' AND speedup IS NOT NULL AND gain >= -$loss
QUALIFY row_number() OVER (PARTITION BY model, task_label ORDER BY speedup DESC, gain DESC, cell_id) = 1
ORDER BY model, task_label;
