-- Share of probed tokens whose probability of the final token falls at no block after a block, one row a model, task
-- and block, and half its 95% interval over documents; then the authors' curves, of 12 blocks. A token counts from the
-- block after its last fall on. Where a model was probed several times on a task, the run with the most documents counts.
WITH of_documents AS (
    SELECT attempt_id, doc_key, monotone_from, count(*) AS tokens
    FROM probe_trace
    WHERE NOT random_weights AND monotone_from IS NOT NULL
    GROUP BY ALL
),
chosen AS (
    SELECT attempt_id, task_label, model, blocks
    FROM runs JOIN (SELECT attempt_id, count(DISTINCT doc_key) AS probed FROM of_documents GROUP BY ALL) USING (attempt_id)
    QUALIFY row_number() OVER (PARTITION BY task_label, model ORDER BY probed DESC, attempt_id DESC) = 1
),
counted AS (
    SELECT task_label AS task, model, each_block.block, blocks, doc_key,
           coalesce(sum(tokens) FILTER (monotone_from <= each_block.block), 0) AS monotone, sum(tokens) AS n
    FROM of_documents JOIN chosen USING (attempt_id), unnest(range(1, blocks + 1)) AS each_block(block)
    GROUP BY ALL
),
ours AS (
    SELECT task, model, block, blocks, sum(monotone) / sum(n) AS share, half_width(monotone, n) AS half_width,
           CAST(sum(n) AS BIGINT) AS n
    FROM counted
    GROUP BY task, model, block, blocks
),
printed AS (
    SELECT CASE
               WHEN model LIKE '%not fine-tuned%' THEN 'vanilla' WHEN model LIKE '%weighted%' THEN 'CALM' ELSE 'FREE'
           END AS model,
           CAST(regexp_extract(setting, '^x=(\d+)', 1) AS INTEGER) + 1 AS block, 12 AS blocks, value AS share
    FROM published
    WHERE metric = 'fraction_monotone' AND EXISTS (FROM ours)
)
SELECT 'ours' AS origin, task, model, block, blocks, share, half_width, n FROM ours
UNION ALL
SELECT 'published', NULL, model, block, blocks, share, NULL, NULL FROM printed
ORDER BY origin, task, model, block;
