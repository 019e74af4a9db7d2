-- Share of probed tokens whose probability of the final token falls at no block after a block, one row a model, task
-- and block. A token counts from the block after its last fall on.
WITH risen AS (
    SELECT task_label AS task, model, len(p_final) AS blocks,
           1 + coalesce(list_max(list_filter(range(1, len(p_final)), lambda l: p_final[l + 1] < p_final[l])), 0)
               AS monotone_from
    FROM probe_trace
    WHERE NOT random_weights
)
SELECT task, model, block, avg(CAST(monotone_from <= block AS INTEGER)) AS share, count(*) AS n
FROM risen, unnest(range(1, blocks + 1)) AS each_block(block)
GROUP BY ALL
ORDER BY task, model, block;
