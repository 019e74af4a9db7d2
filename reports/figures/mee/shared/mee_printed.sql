printed AS (
    SELECT CASE
               WHEN model LIKE '%not fine-tuned%' THEN 'vanilla' WHEN model LIKE '%weighted%' THEN 'CALM' ELSE 'FREE'
           END AS model,
           CAST(regexp_extract(setting, '^x=(\d+)', 1) AS INTEGER) + 1 AS block, 12 AS blocks, metric, value
    FROM published
    WHERE metric IN ('fraction_top1_no_change', 'p_final_mean', 'fraction_monotone') AND setting LIKE 'x=%'
        AND EXISTS (FROM ours)
)
