-- Exits: Is a model suited to early exit on a task, and how often is full depth's token top-1 early and then lost again?
-- From the probe of full depth's answers; a column with the suffix _half is half the 95% interval over documents.
-- first_match, stable_from: mean block of the first match, and from which the token stays top-1, as a share of the depth L;
-- agreement_mid: share of tokens that block L/2 predicts; agreement_area: the same share, mean over all blocks;
-- share_lost: share of tokens whose top-1 changes again after the first match, so that an exit there is right only by luck;
-- blocks_between: mean number of blocks until such a token returns for good; share_only_last: share of tokens settled
-- only at the last block, for which no early exit is safe.
WITH token AS (
    SELECT
        p.model, p.task_label, p.cell_id, p.doc_key, r.blocks, p.first_match, p.stable_from,
        list_transform(p.top1_id, lambda id: (id = p.full_token_id)::INTEGER) AS matches
    FROM probe_trace AS p JOIN runs AS r USING (attempt_id)
    WHERE p.choice IS NULL
), document AS (
    SELECT
        model, task_label, cell_id, doc_key, blocks, count(*) AS n, sum(first_match / blocks) AS first_match, sum(stable_from / blocks) AS stable_from,
        sum(matches[greatest(blocks // 2, 1)]) AS agreement_mid, sum(list_avg(matches)) AS agreement_area,
        count_if(first_match < stable_from) AS lost, count_if(stable_from = blocks) AS only_last,
        sum(stable_from - first_match) AS blocks_between
    FROM token GROUP BY ALL
)
SELECT
    model, task_label, blocks, sum(first_match) / sum(n) AS first_match, half_width(first_match, n) AS first_match_half,
    sum(stable_from) / sum(n) AS stable_from, half_width(stable_from, n) AS stable_from_half,
    sum(agreement_mid) / sum(n) AS agreement_mid, half_width(agreement_mid, n) AS agreement_mid_half,
    sum(agreement_area) / sum(n) AS agreement_area, half_width(agreement_area, n) AS agreement_area_half,
    sum(lost) / sum(n) AS share_lost, half_width(lost, n) AS share_lost_half,
    sum(blocks_between) / sum(lost) AS blocks_between, sum(only_last) / sum(n) AS share_only_last,
    count(*) AS documents, sum(n)::BIGINT AS n
FROM document
GROUP BY model, task_label, cell_id, blocks
ORDER BY model, task_label, cell_id;
