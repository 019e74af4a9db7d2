-- Exits: Is a model suited to early exit on a task, and how often is full depth's token top-1 early and then lost again?
-- From the probe of full depth's answers; a column with the suffix _half is half the 95% interval over documents.
-- first_match, stable_from: mean block of the first match, and from which the token stays top-1, as a share of the depth L;
-- agreement_mid: share of tokens that block L/2 predicts; agreement_area: the same share, mean over all blocks;
-- share_lost: share of tokens whose top-1 changes again after the first match, so that an exit there is right only by luck;
-- blocks_between: mean number of blocks until such a token returns for good; share_only_last: share of tokens settled
-- only at the last block, for which no early exit is safe.
SELECT
    model, task_label, r.blocks, first_match, first_match_half, stable_from, stable_from_half, agreement_mid, agreement_mid_half,
    agreement_area, agreement_area_half, share_lost, share_lost_half, blocks_between, share_only_last, s.documents, n
FROM suitability AS s JOIN runs AS r USING (attempt_id, model, task_label, cell_id)
ORDER BY model, task_label, cell_id;
