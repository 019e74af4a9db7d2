-- Margin of each block's prediction, p1 - p2, and the task's score if every token exits there (static exit). One row a
-- model, task, block and quantity. Published values are those read from PRUNE's figure 2; its layers count from 0.
WITH
-- continues in shared/prune_probes.sql
margins AS (
    SELECT attempt_id, block, round(sum(gap) / sum(n), 9) AS value, round(half_width(gap, n), 9) AS half, sum(n) AS n
    FROM probe_by_document WHERE attempt_id IN (SELECT attempt_id FROM probes) GROUP BY ALL
),
exits AS (
    SELECT f.full_depth_cell_id, f.task_label, f.model,
           f.conditions AS setting,
           if(f.is_full_depth, f.blocks, CAST(f.params ->> 'exit_layer' AS INTEGER)) AS block, f.metric, f.value,
           f.ci_low, f.ci_high, f.n
    FROM frontier AS f
    WHERE f.execution = 'real' AND f.value IS NOT NULL
          AND (f.is_full_depth OR f.method = 'static' AND f.kv_policy = 'state-copy')
),
scores AS (  -- over the documents on which most exits were run
    SELECT * FROM exits JOIN (
        SELECT task_label, model, setting, full_depth_cell_id
        FROM exits
        GROUP BY task_label, model, setting, full_depth_cell_id
        QUALIFY row_number() OVER (
            PARTITION BY task_label, model, setting ORDER BY count(*) DESC, max(n) DESC, full_depth_cell_id
        ) = 1
    ) USING (task_label, model, setting, full_depth_cell_id)
),
read_by_eye AS (
    SELECT if(metric = 'confidence', 'margin', 'score') AS quantity, if(metric = 'confidence', 1, 100) * value AS value,
           (1 + CAST(setting[7:] AS INTEGER)) / 24 AS depth, 'squad' AS task
    FROM published WHERE figure_or_table = 'PRUNE Fig 2 (read by eye, approx.)'
)
SELECT 'ours' AS origin, p.task_label AS task, p.model, p.setting, p.loss, p.blocks, 'margin' AS quantity,
       'margin' AS metric, CAST(m.block AS DOUBLE) AS block, m.value, m.value - m.half AS ci_low,
       m.value + m.half AS ci_high, CAST(m.n AS BIGINT) AS n
FROM probes AS p JOIN margins AS m USING (attempt_id)
UNION ALL
SELECT 'ours', p.task_label, p.model, p.setting, p.loss, p.blocks, 'score', s.metric, s.block, s.value, s.ci_low,
       s.ci_high, s.n
FROM probes AS p JOIN scores AS s USING (task_label, model, setting)
UNION ALL
SELECT 'published', p.task_label, p.model, p.setting, p.loss, p.blocks, e.quantity, NULL, e.depth * p.blocks, e.value,
       NULL, NULL, NULL
FROM probes AS p JOIN read_by_eye AS e USING (task)
WHERE p.loss <> 'weighted'
ORDER BY task, model, setting, origin, quantity, block;
