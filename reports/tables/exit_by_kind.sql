-- Depth by kind of token: where predictions settle (probes) and where methods emit (real decodes).
SELECT model, task_label AS task, kind, method, params, kv_policy, token_kind, n,
       mean_first_match, mean_stable_from, mean_exit_layer, share_equal_full
FROM exit_by_kind
WHERE NOT random_weights
ORDER BY model, task, kind, method, params, kv_policy, token_kind, cell_id;
