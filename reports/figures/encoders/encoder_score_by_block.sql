-- Encoders: the task's metric of every block's own prediction of every document: of static depths and full depth, and, where
-- the metric is accuracy, of other runs that asked a block of all documents. One row a model, task and block.
WITH
-- continues in shared/encoder_runs.sql
read AS (
    SELECT model, task_label, metric, lower_is_better, mean_exit_layer::INTEGER AS block, blocks, value, ci_low, ci_high, n, 1 AS choice
    FROM shown WHERE method = 'static' OR is_full_depth
),
asked AS (
    SELECT
        s.model, s.task_label, s.metric, false AS lower_is_better, t.block, s.blocks, 100 * avg(t.is_right::INTEGER) AS value,
        100 * half_width(t.is_right::INTEGER, 1) AS half, count(*) AS n
    FROM shown AS s JOIN (SELECT attempt_id, block, is_right FROM sequence_trace) AS t USING (attempt_id)
    WHERE s.metric = 'acc' AND NOT s.lower_is_better GROUP BY s.model, s.task_label, s.metric, t.block, s.blocks, s.attempt_id, s.n
    HAVING count(*) = s.n
)
FROM (
    FROM read UNION ALL BY NAME
    SELECT * EXCLUDE (half), greatest(0, value - half) AS ci_low, least(100, value + half) AS ci_high, 2 AS choice FROM asked
)
SELECT model, task_label AS task, metric, lower_is_better, block, blocks, value, ci_low, ci_high, n
QUALIFY row_number() OVER (PARTITION BY model, task_label, block ORDER BY choice, n DESC, value) = 1
ORDER BY task, model, block;
