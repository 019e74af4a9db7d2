-- Share of probed tokens whose top-1 prediction never changes again after a block, one row per model, task and block,
-- and half its 95% interval over documents; then the published curves, of 12 blocks. If a model was probed several
-- times on a task, the run with the most documents counts.
WITH chosen AS (SELECT attempt_id FROM plain_probes WHERE is_largest AND NOT random_weights),
ours AS (
    SELECT task_label AS task, model, block, max(block) OVER (PARTITION BY task_label, model) AS blocks,
           sum(settled) / sum(n) AS share, half_width(settled, n) AS half_width, CAST(sum(n) AS BIGINT) AS n
    FROM probe_by_document SEMI JOIN chosen USING (attempt_id)
    GROUP BY task_label, model, block
),
-- continues in shared/mee_printed.sql
SELECT 'ours' AS origin, task, model, block, blocks, share, half_width, n FROM ours
UNION ALL
SELECT 'published', NULL, model, block, blocks, value, NULL, NULL FROM printed WHERE metric = 'fraction_top1_no_change'
ORDER BY origin, task, model, block;
