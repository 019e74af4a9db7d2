-- Position of each setting between random exits and the oracle, with the interval of its own agreement with full depth. One
-- row per setting of a method on a model and task that also has real runs of both.
SELECT
    f.model, f.task_label AS task, f.method, f.params, f.kv_policy, f.mean_exit_layer, f.blocks, f.token_match,
    m.ci_low AS match_low, m.ci_high AS match_high, o.random_match, o.shallower, o.oracle_match, o.oracle_exit_layer, f.n,
    CASE WHEN o.oracle_match - o.random_match >= 0.05 THEN o.share_of_gap END AS share,
    CASE WHEN o.oracle_match - o.random_match >= 0.05
        THEN (m.ci_low - o.random_match) / (o.oracle_match - o.random_match) END AS share_low,
    CASE WHEN o.oracle_match - o.random_match >= 0.05
        THEN (m.ci_high - o.random_match) / (o.oracle_match - o.random_match) END AS share_high
FROM random_to_oracle AS o
JOIN frontier AS f USING (attempt_id)
LEFT JOIN metric_values AS m ON m.attempt_id = f.attempt_id AND m.metric = 'token_match' AND m.is_current
WHERE NOT f.random_weights
ORDER BY f.model, task, f.method, f.params, f.kv_policy, f.cell_id;
