-- Cost and speed: What is the fastest method that loses next to nothing?
-- For each model and task the largest measured speed-up among runs whose score is at most $loss points below full
-- depth's (metrics are on a scale of 0 to 100). Full depth itself stands where nothing else is faster. Look at ci_low
-- too: a loss within the interval is not shown to be small.
-- $loss = 1: points of the task's headline metric
SELECT
    model, task_label, method, params, kv_policy, seed, metric, value, ci_low, full_value, delta, mean_exit_layer,
    token_match, speedup, speedup_low
FROM frontier
WHERE execution = 'real' AND speedup IS NOT NULL AND delta >= -$loss
QUALIFY row_number() OVER (PARTITION BY model, task_label ORDER BY speedup DESC, delta DESC, cell_id) = 1
ORDER BY model, task_label;
