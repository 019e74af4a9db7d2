-- Mean and standard deviation over probed tokens of the probability that each block gives to the final token.
-- Rounded, because the last digits of sums depend on the order in which threads add.
SELECT task_label AS task, model, block, round(avg(p_final), 6) AS mean, round(stddev_pop(p_final), 6) AS std,
       count(*) AS n
FROM layer_trace
WHERE NOT random_weights
GROUP BY ALL
ORDER BY task, model, block;
