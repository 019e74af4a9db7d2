-- Exits: Do words that need more reasoning steps exit later?
-- Words of the generated data that need 1 to 5 look-ups. From probes: block from which full depth's token stays top-1.
-- From real decodes: the method's exit layer, and the share of its tokens equal to full depth's.
SELECT
    model, task_label, kind, method, label, kv_policy, seed, token_kind, mean_stable_from,
    mean_exit_layer, share_equal_full, n
FROM exit_by_kind
WHERE starts_with(token_kind, 'hop') AND execution = 'real'
ORDER BY model, task_label, kind DESC, method, label, kv_policy, seed, cell_id, token_kind;
