-- Exits: How often is full depth's token on top of an early block and lost again?
-- An exit at the first match would be right by luck. share_lost: tokens whose first match is not yet settled;
-- blocks_between: how long such a token takes to come back for good; share_only_last: settled by the last block
-- alone, so that no early exit is safe.
SELECT
    p.model, p.task_label, any_value(r.blocks) AS blocks, avg(p.first_match) AS mean_first_match,
    avg(p.stable_from) AS mean_stable_from, count_if(p.first_match < p.stable_from) / count(*) AS share_lost,
    avg(p.stable_from - p.first_match) FILTER (p.first_match < p.stable_from) AS blocks_between,
    count_if(p.stable_from = r.blocks) / count(*) AS share_only_last, count(*) AS n
FROM probe_trace AS p JOIN runs AS r USING (attempt_id)
WHERE p.choice IS NULL
GROUP BY p.model, p.task_label, p.cell_id
ORDER BY p.model, p.task_label, p.cell_id;
