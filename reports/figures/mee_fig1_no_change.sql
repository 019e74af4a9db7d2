-- Share of probed tokens whose top-1 prediction never changes again after a block, one row a model, task and block.
SELECT task_label AS task, model, block, sum(share * n) / sum(n) AS share, CAST(sum(n) AS BIGINT) AS n
FROM no_change
WHERE NOT random_weights
GROUP BY ALL
ORDER BY task, model, block;
