-- Share of tokens equal to full depth's against mean exit layer: real decodes and replays of a probe.
SELECT task, model, method, params, execution, token_match, mean_exit_layer, blocks, n
FROM frontier
WHERE NOT random_weights AND token_match IS NOT NULL
ORDER BY task, model, method, execution, mean_exit_layer, params, cell_id;
