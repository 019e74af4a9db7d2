-- Share of probed tokens whose probability of the final token never falls after a block, or by no more than a tolerance
-- in total, one row per model, task, tolerance and block, and half its 95% interval over documents; then the authors'
-- curves, of 12 blocks. A token counts from the block after its last decrease on. If a model was probed several times
-- on a task, the run with the most documents counts.
WITH chosen AS (SELECT attempt_id FROM plain_probes WHERE is_largest AND NOT random_weights),
counted AS (
    SELECT task_label, model, block, n, unnest([0, tolerance]) AS tolerance,
           unnest([monotone, nearly_monotone]) AS held
    FROM probe_by_document SEMI JOIN chosen USING (attempt_id)
),
ours AS (
    SELECT task_label AS task, model, block, max(block) OVER (PARTITION BY task_label, model) AS blocks, tolerance,
           sum(held) / sum(n) AS share, half_width(held, n) AS half_width, CAST(sum(n) AS BIGINT) AS n
    FROM counted
    GROUP BY task_label, model, block, tolerance
),
-- continues in shared/mee_printed.sql
SELECT 'ours' AS origin, task, model, block, blocks, tolerance, share, half_width, n FROM ours
UNION ALL
SELECT 'published', NULL, model, block, blocks, 0, value, NULL, NULL FROM printed WHERE metric = 'fraction_monotone'
ORDER BY origin, task, model, tolerance, block;
