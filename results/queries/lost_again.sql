-- Exits: How often is full depth's token top-1 at an early block and then lost again?
-- For such tokens an exit at the first match would be right only by luck. share_lost: share of tokens whose top-1
-- changes again after the first match; blocks_between: mean number of blocks until full depth's token returns for good;
-- share_only_last: share of tokens settled only at the last block, for which no early exit is safe.
SELECT
    p.model, p.task_label, any_value(r.blocks) AS blocks, avg(p.first_match) AS mean_first_match,
    avg(p.stable_from) AS mean_stable_from, count_if(p.first_match < p.stable_from) / count(*) AS share_lost,
    avg(p.stable_from - p.first_match) FILTER (p.first_match < p.stable_from) AS blocks_between,
    count_if(p.stable_from = r.blocks) / count(*) AS share_only_last, count(*) AS n
FROM probe_trace AS p JOIN runs AS r USING (attempt_id)
WHERE p.choice IS NULL
GROUP BY p.model, p.task_label, p.cell_id
ORDER BY p.model, p.task_label, p.cell_id;
