asked AS (
    SELECT * FROM gates
    WHERE loss IN ('last', 'weighted', 'unknown') AND (method, head) IN (SELECT (method, head) FROM shown)
    QUALIFY row_number() OVER (  -- if lists of several sizes were run, the latest run
        PARTITION BY model, setting, full_depth_cell_id, method, head, min_exit ORDER BY attempt_id DESC
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
