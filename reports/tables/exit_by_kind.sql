-- Depth by kind of token: where predictions settle (probes) and where methods emit (real decodes).
SELECT model, task_label AS task, kind, method,
       json_merge_patch(params, json_object('kv_policy', kv_policy)) AS params, token_kind, n,
       mean_first_match, mean_stable_from, mean_exit_layer, share_equal_full
FROM exit_by_kind
WHERE NOT random_weights
ORDER BY model, task, kind, method, params, token_kind, cell_id;
