-- Mean ideal exit by a token's position in the answer and by the answer's length, one row per task, model, measure and
-- bin (at most a dozen of equal width); x: middle of the bin. Bins of fewer than five tokens are excluded.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH chosen AS (SELECT attempt_id FROM plain_probes WHERE is_largest AND NOT random_weights),
classes AS (
    SELECT task_label, CAST(ceil(max(position) / 12) AS INTEGER) AS width
    FROM probe_trace SEMI JOIN chosen USING (attempt_id) GROUP BY ALL
),
summed AS (  -- a document's tokens in one bin of positions
    SELECT task_label, model, attempt_id, doc_key, width, (position - 1) // width AS class,
           sum(first_match) AS exits, count(*) AS n, max(blocks) AS blocks
    FROM probe_trace SEMI JOIN chosen USING (attempt_id)
    JOIN classes USING (task_label)
    JOIN (SELECT attempt_id, blocks FROM runs) USING (attempt_id)
    GROUP BY ALL
),
measured AS (
    SELECT 'position' AS measure, task_label, model, width, class, exits, n, blocks FROM summed
    UNION ALL
    SELECT 'length', task_label, model, width, (n - 1) // width, exits, n, blocks
    FROM (
        SELECT task_label, model, attempt_id, doc_key, width, sum(exits) AS exits, sum(n) AS n, max(blocks) AS blocks
        FROM summed GROUP BY ALL
    )
)
SELECT task_label AS task, measure, model || coalesce(', ' || training, '') AS series, model,
       class * width + (width + 1) / 2 AS x, max(blocks) AS blocks, round(sum(exits) / sum(n), 6) AS ideal_exit,
       round(half_width(exits, n), 6) AS half_width, CAST(sum(n) AS BIGINT) AS n
FROM measured
JOIN objectives USING (model)
GROUP BY task_label, measure, series, model, class, width
HAVING sum(n) >= 5
ORDER BY task, measure, series, model, x;
