-- Mean and standard deviation over probed tokens of the probability that each block gives to the final token.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH sums AS (  -- by run first: a sum of squares costs half of a running deviation
    SELECT attempt_id, block, sum(p_final) AS total, sum(p_final * p_final) AS squares, count(*) AS n
    FROM (
        SELECT attempt_id, unnest(range(1, len(p_final) + 1)) AS block, CAST(unnest(p_final) AS DOUBLE) AS p_final
        FROM probe_trace
        WHERE NOT random_weights
    )
    GROUP BY ALL
)
SELECT r.task_label AS task, r.model, s.block, round(sum(s.total) / sum(s.n), 6) AS mean,
       round(sqrt(greatest(0, sum(s.squares) / sum(s.n) - (sum(s.total) / sum(s.n)) ** 2)), 6) AS std,
       CAST(sum(s.n) AS BIGINT) AS n
FROM sums AS s JOIN runs AS r USING (attempt_id)
GROUP BY ALL
ORDER BY task, r.model, s.block;
