-- Share of generated tokens that exit at each layer, for every setting of every method that was really run.
SELECT h.model, h.task, h.method, h.params, h.exit_layer, any_value(f.blocks) AS blocks,
       CAST(sum(h.tokens) AS BIGINT) AS tokens,
       sum(h.tokens) / sum(sum(h.tokens)) OVER (PARTITION BY h.model, h.task, h.method, h.params) AS share
FROM exit_histogram h
JOIN (SELECT model, max(blocks) AS blocks FROM frontier GROUP BY model) f USING (model)
WHERE NOT h.random_weights AND h.execution = 'real'
GROUP BY h.model, h.task, h.method, h.params, h.exit_layer
ORDER BY h.model, h.task, h.method, h.params, h.exit_layer;
