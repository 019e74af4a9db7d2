-- Share of generated tokens that exit at each layer, for every setting of every method that was really run.
WITH counted AS (
    SELECT r.model, r.task_label AS task, r.method, r.params, r.kv_policy,
           h.exit_layer, max(r.blocks) AS blocks, CAST(sum(h.tokens) AS BIGINT) AS tokens
    FROM exit_histogram h
    JOIN runs r USING (attempt_id)
    WHERE NOT r.random_weights AND r.execution = 'real'
    GROUP BY ALL
)
SELECT model, task, method, params, kv_policy, exit_layer, blocks, tokens,
       tokens / sum(tokens) OVER (PARTITION BY model, task, method, params, kv_policy) AS share
FROM counted
ORDER BY model, task, method, params, kv_policy, exit_layer;
