-- The contrastive gate (JSD) over pruned heads: mean and standard deviation over first gated blocks, of the late ones
-- as published (15 to 20 of 24, ours from 15/24 to 7/8) and of all. One row per task, model and head.
WITH
-- continues in ../figures/prune/shared/prune_gates.sql
asked AS (
    SELECT * FROM gates
    WHERE loss IN ('last', 'weighted', 'unknown') AND method = 'contrastive-jsd' AND conforms IS DISTINCT FROM false
    QUALIFY row_number() OVER (  -- if lists of several sizes were run, the latest run
        PARTITION BY model, setting, full_depth_cell_id, head, min_exit ORDER BY attempt_id DESC
    ) = 1
),
means AS (
    SELECT task, task_label, model, loss, setting, head, metric, max(full_value) AS full_value, max(n) AS n,
           count(*) AS settings, list(min_exit ORDER BY min_exit) FILTER (is_late) AS late,
           avg(depth) FILTER (is_late) AS depth, stddev_pop(depth) FILTER (is_late) AS depth_std,
           avg(value) FILTER (is_late) AS score, stddev_pop(value) FILTER (is_late) AS score_std,
           avg(depth) AS depth_all, stddev_pop(depth) AS depth_all_std,
           avg(value) AS score_all, stddev_pop(value) AS score_all_std,
           CASE WHEN any_value(lower_is_better) THEN max(value) ELSE min(value) END AS score_worst
    FROM (
        SELECT *, mean_exit_layer / blocks AS depth, min_exit / blocks BETWEEN 15 / 24 AND 21 / 24 AS is_late FROM asked
    )
    GROUP BY task, task_label, model, loss, setting, head, metric, full_depth_cell_id
    HAVING count(*) > 1
    QUALIFY row_number() OVER (  -- the documents on which most settings were run
        PARTITION BY task_label, model, setting, head ORDER BY count(*) DESC, max(n) DESC, full_depth_cell_id
    ) = 1
),
printed AS (
    SELECT if(dataset = 'SQuAD', 'squad', 'samsum') AS task,
           CASE method
               WHEN 'JSD + fixed pruning' THEN 'pruned-fixed'
               WHEN 'JSD + decaying pruning' THEN 'pruned-decaying-idsorted'
               WHEN 'JSD + adaptive pruning' THEN 'pruned-adaptive-code'
           END AS head,
           max(value / 24) FILTER (metric = 'avg_exit_block') AS depth,
           max(std / 24) FILTER (metric = 'avg_exit_block') AS depth_std,
           max(value) FILTER (metric <> 'avg_exit_block') AS score,
           max(std) FILTER (metric <> 'avg_exit_block') AS score_std
    FROM published WHERE figure_or_table = 'Table 1 (numbers are missing in PRUNE)' GROUP BY ALL
)
SELECT m.task_label AS task, m.model, m.loss, m.setting, m.head, m.metric, m.n, array_to_string(m.late, ', ') AS late,
       m.settings, m.full_value, round(m.depth, 9) AS depth, round(m.depth_std, 9) AS depth_std, round(m.score, 9) AS score,
       round(m.score_std, 9) AS score_std, round(m.depth_all, 9) AS depth_all, round(m.depth_all_std, 9) AS depth_all_std,
       round(m.score_all, 9) AS score_all, round(m.score_all_std, 9) AS score_all_std, m.score_worst,
       p.depth AS published_depth, p.depth_std AS published_depth_std, p.score AS published_score,
       p.score_std AS published_score_std
FROM means AS m LEFT JOIN printed AS p ON p.task = m.task AND p.head = m.head AND m.loss <> 'weighted'
ORDER BY m.task_label, m.model, m.setting, m.head;
