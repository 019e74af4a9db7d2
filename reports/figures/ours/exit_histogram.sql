-- Share of generated or scored tokens that exit at each layer, for every setting of every method that was really run;
-- n: documents.
-- A setting that was run several times (on other documents, in other batches or number formats, with other seeds) is
-- shown by one run: under the conditions shared with most other settings of the model on the task, of these the one
-- with the most documents, of these the newest.
WITH ran AS (
    SELECT f.attempt_id, f.model, f.task_label AS task, f.method, f.params, f.kv_policy, f.blocks, f.n,
           count(*) OVER (PARTITION BY f.model, f.task_label, f.setting_id) AS beside
    FROM frontier AS f
    WHERE NOT f.random_weights AND f.execution = 'real'
),
chosen AS (
    FROM ran
    QUALIFY row_number() OVER (
        PARTITION BY model, task, method, params, kv_policy ORDER BY beside DESC, n DESC, attempt_id DESC
    ) = 1
)
SELECT c.model, c.task, c.method, c.params, c.kv_policy, h.exit_layer, c.blocks, h.tokens, h.share, c.n
FROM chosen AS c JOIN (SELECT attempt_id, exit_layer, tokens, share FROM exit_histogram) AS h USING (attempt_id)
ORDER BY c.model, c.task, c.method, c.params, c.kv_policy, h.exit_layer;
