-- Mean over probed tokens of the largest probability at each block, one row a task, model and block.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH trained AS (
    SELECT model, CASE WHEN max(loss) IN ('last', 'exit-heads') THEN 'last'
                       WHEN max(loss) IN ('weighted', 'layer-skip') THEN 'joint' END AS training
    FROM trainings GROUP BY model
)
SELECT task_label AS task, model || coalesce(', ' || training, '') AS series, model, block,
       round(sum(p1) / sum(n), 6) AS mean, round(half_width(p1, n), 6) AS half_width, CAST(sum(n) AS BIGINT) AS n
FROM probe_by_document
LEFT JOIN trained USING (model)
WHERE NOT random_weights
GROUP BY ALL
ORDER BY task, series, model, block;
