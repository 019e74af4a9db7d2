-- Mean over probed tokens of the largest probability at each block, one row per task, model and block.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH chosen AS (SELECT attempt_id FROM plain_probes WHERE is_largest AND NOT random_weights)
SELECT task_label AS task, model || coalesce(', ' || training, '') AS series, model, block,
       round(sum(p1) / sum(n), 6) AS mean, round(half_width(p1, n), 6) AS half_width, CAST(sum(n) AS BIGINT) AS n
FROM probe_by_document SEMI JOIN chosen USING (attempt_id)
JOIN objectives USING (model)
GROUP BY ALL
ORDER BY task, series, model, block;
