-- Depth against reasoning steps (built-in data): words that need 1, 2 or 3 look-ups. From probes: the block from which
-- full depth's token is top-1 for good. From real decodes: where the method exits, and how often it still agrees.
SELECT
    model, task_label, kind, method, params, token_kind, mean_stable_from, mean_exit_layer, share_equal_full, n
FROM exit_by_kind
WHERE starts_with(token_kind, 'hop') AND execution = 'real'
ORDER BY model, task_label, kind DESC, method, params, cell_id, token_kind;
