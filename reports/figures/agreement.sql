-- Share of tokens equal to full depth's against mean exit layer: real decodes and replays of a probe.
SELECT task_label AS task, model, concat_ws(', ', dtype, device, 'batch ' || batch_size) AS setting,
       method, params, kv_policy, execution,
       token_match, mean_exit_layer, blocks, n
FROM frontier
WHERE NOT random_weights AND token_match IS NOT NULL
ORDER BY task, model, setting, method, execution, mean_exit_layer, cell_id;
