-- Mean over probed tokens of the probability that each block gives to the final token, half its 95% interval over
-- documents, and the standard deviation of the tokens; then the published means. If a model was probed several times
-- on a task, the run with the most documents counts.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH chosen AS (SELECT attempt_id FROM plain_probes WHERE is_largest AND NOT random_weights),
ours AS (
    SELECT task_label AS task, model, block, max(block) OVER (PARTITION BY task_label, model) AS blocks,
           round(sum(p_final) / sum(n), 6) AS mean, round(half_width(p_final, n), 6) AS half_width,
           round(sqrt(greatest(0, sum(p_final_squared) / sum(n) - (sum(p_final) / sum(n)) ** 2)), 6) AS std,
           CAST(sum(n) AS BIGINT) AS n
    FROM probe_by_document SEMI JOIN chosen USING (attempt_id)
    GROUP BY task_label, model, block
),
-- continues in shared/mee_printed.sql
SELECT 'ours' AS origin, task, model, block, blocks, mean, half_width, std, n FROM ours
UNION ALL
SELECT 'published', NULL, model, block, blocks, value, NULL, NULL, NULL FROM printed WHERE metric = 'p_final_mean'
ORDER BY origin, task, model, block;
