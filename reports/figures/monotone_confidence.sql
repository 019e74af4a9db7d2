-- Share of probed tokens whose probability of the final token falls at no block after a block, one row a model, task
-- and block. A token counts from the block after its last fall on.
SELECT r.task_label AS task, r.model, each_block.block,
       coalesce(sum(t.tokens) FILTER (t.monotone_from <= each_block.block), 0) / sum(t.tokens) AS share,
       CAST(sum(t.tokens) AS BIGINT) AS n
FROM runs AS r
JOIN (SELECT attempt_id, monotone_from, count(*) AS tokens FROM probe_trace GROUP BY ALL) AS t USING (attempt_id),
     unnest(range(1, r.blocks + 1)) AS each_block(block)
WHERE NOT r.random_weights AND t.monotone_from IS NOT NULL
GROUP BY ALL
ORDER BY task, r.model, each_block.block;
