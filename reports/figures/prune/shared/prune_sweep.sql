asked AS (
    SELECT f.attempt_id, f.full_depth_cell_id, f.task, f.task_label, f.model, t.loss,
           concat_ws(', ', f.conditions, 'threshold ' || (f.params ->> 'threshold'),
                     nullif(f.kv_policy, 'state-copy')) AS setting,
           f.method, f.params ->> 'head' AS head, CAST(f.params ->> 'min_exit' AS DOUBLE) AS min_exit, f.blocks, f.metric,
           f.full_value, f.n
    FROM frontier AS f
    JOIN objectives AS t USING (model)
    WHERE NOT f.random_weights AND f.execution = 'real' AND t.loss IN ('last', 'weighted', 'unknown')
          AND (f.method, f.params ->> 'head') IN (SELECT (method, head) FROM shown)
          AND f.params ->> 'rule' = 'constant' AND f.params ->> 'decay' = 'none' AND f.params ->> 'every' = '1'
          AND coalesce(f.params ->> 'emit_score', 'plain') = 'plain'
    QUALIFY row_number() OVER (  -- if lists of several sizes were run, the latest run
        PARTITION BY f.model, setting, f.full_depth_cell_id, f.method, head, min_exit ORDER BY f.attempt_id DESC
    ) = 1
),
panels AS (  -- a sweep: gates with several first gated blocks, over the documents on which most of them were run
    SELECT task, task_label, model, loss, setting, blocks, metric, full_depth_cell_id, max(full_value) AS full_value
    FROM asked
    GROUP BY task, task_label, model, loss, setting, blocks, metric, full_depth_cell_id
    HAVING count(DISTINCT min_exit) > 1 AND count(DISTINCT (method, head)) > 1
    QUALIFY row_number() OVER (
        PARTITION BY task_label, model, setting ORDER BY count(*) DESC, max(n) DESC, full_depth_cell_id
    ) = 1
)
SELECT 'ours' AS origin, p.task_label AS task, p.model, p.setting, p.loss, p.blocks, a.method, a.head, a.min_exit,
       m.metric, m.metric = 'mean_exit_layer' AS is_depth, m.value, m.ci_low, m.ci_high, p.full_value, m.n
FROM panels AS p
JOIN asked AS a USING (task_label, model, setting, metric, full_depth_cell_id)
JOIN metric_values AS m ON m.attempt_id = a.attempt_id AND m.is_current AND m.metric IN (a.metric, 'mean_exit_layer')
UNION ALL
SELECT 'published', p.task_label, p.model, p.setting, p.loss, p.blocks, b.our_method, b.our_params ->> 'head',
       b.min_exit_share * p.blocks, b.our_metric, b.our_metric = 'mean_exit_layer',
       if(b.our_metric = 'mean_exit_layer', b.value * p.blocks / 24, b.value), NULL, NULL, p.full_value, NULL
FROM panels AS p
JOIN published AS b ON b.our_task = p.task AND b.our_metric IN (p.metric, 'mean_exit_layer')
WHERE p.loss <> 'weighted' AND regexp_matches(b.figure_or_table, '^PRUNE Fig (6|7|10|11)[ab]$')
      AND (b.our_method, b.our_params ->> 'head') IN (SELECT (method, head) FROM shown)
      AND NOT (b.figure_or_table = 'PRUNE Fig 11a' AND b.method = 'JSD + fixed pruning'
               AND b.setting IN ('min exit layer 6', 'min exit layer 3'))
ORDER BY task, model, setting, is_depth DESC, origin, method, head, min_exit, value;
