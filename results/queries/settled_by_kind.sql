-- Exits: How early is full depth's token found, and how early is it settled, by kind of word?
-- The kinds are those of the generated data. mean_first_match: first block at which the token is top-1;
-- mean_stable_from: block from which it stays top-1. A gate must not exit between the two.
SELECT model, task_label, token_kind, mean_first_match, mean_stable_from, n
FROM exit_by_kind
WHERE kind = 'probe'
ORDER BY model, task_label, token_kind, cell_id;
