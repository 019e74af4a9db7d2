-- Exits: How early is full depth's token found, and how early is it settled, by kind of word?
-- Kinds are those of the generated data. mean_first_match: block at which it is first on top; mean_stable_from: block
-- from which it stays there. What lies between the two is what a gate must not trust.
SELECT model, task_label, token_kind, mean_first_match, mean_stable_from, n
FROM exit_by_kind
WHERE kind = 'probe'
ORDER BY model, task_label, token_kind, cell_id;
