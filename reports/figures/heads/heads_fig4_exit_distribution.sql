-- Share of tokens that exit at each exit head, and at the last block, by epsilon, and half its 95% interval over
-- documents: one row per task, setting, series, epsilon and exit layer, of series with several epsilons. A series is a
-- model or another varied parameter: confidence, KV policy and the gated heads.
-- continues in shared/heads_runs.sql
named AS (
    SELECT task_label AS task, setting, epsilon, blocks,
-- continues in shared/heads_series.sql
       attempt_id
    FROM heads
    QUALIFY count(DISTINCT epsilon) OVER (PARTITION BY task_label, setting, model, confidence, kv_policy, asked) > 1
),
of_documents AS (
    SELECT attempt_id, doc_key, exit_layer, count(*) AS tokens
    FROM token_exit SEMI JOIN named USING (attempt_id)
    GROUP BY ALL
),
layers AS (  -- every layer at which any setting of the series emits
    SELECT DISTINCT task, setting, series, exit_layer FROM of_documents JOIN named USING (attempt_id)
),
counted AS (
    SELECT named.*, d.doc_key, layers.exit_layer, d.n, coalesce(o.tokens, 0) AS tokens
    FROM named
    JOIN layers USING (task, setting, series)
    JOIN (SELECT attempt_id, doc_key, sum(tokens) AS n FROM of_documents GROUP BY ALL) AS d USING (attempt_id)
    LEFT JOIN of_documents AS o USING (attempt_id, doc_key, exit_layer)
)
SELECT task, setting, series, epsilon, exit_layer, blocks, sum(tokens) / sum(n) AS share,
       half_width(tokens, n) AS half_width, CAST(sum(n) AS BIGINT) AS n
FROM counted
GROUP BY task, setting, series, epsilon, exit_layer, blocks, attempt_id
ORDER BY task, setting, series, epsilon, exit_layer, attempt_id;
