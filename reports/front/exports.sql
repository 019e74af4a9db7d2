-- Suite entries that repeat a run: one row per scored run, timed or not.
WITH timed AS (
    SELECT
        c.setting_id, c.method, c.method_revision, c.params::VARCHAR AS params, c.kv_policy, c.identity -> 'timing' AS timing
    FROM run_names AS n JOIN cell AS c USING (cell_id)
    WHERE c.kind = 'timing' AND (c.identity -> 'record') IS NULL
    QUALIFY row_number() OVER (
        PARTITION BY c.setting_id, c.method, c.method_revision, c.params::VARCHAR, c.kv_policy ORDER BY n.attempt_id DESC
    ) = 1
)
SELECT
    n.cell_id, n.model, n.task, n.task_label, c.method, c.params, c.seed, c.dtype, c.device, c.batch_size,
    (c.identity ->> 'batch_rows')::INTEGER AS batch_rows, c.identity ->> 'head_precision' AS head_precision, coalesce(c.identity ->> 'engine', 'lean') AS engine, c.generation,
    c.data_asked, c.model_source, c.random_weights, t.recipe, f.data_asked AS fit_data_asked, s.timing
FROM run_names AS n
JOIN cell AS c USING (cell_id)
JOIN model_artifact AS m USING (model_id)
LEFT JOIN (SELECT weights_sha256, min(recipe) AS recipe FROM training_run GROUP BY ALL) AS t USING (weights_sha256)
LEFT JOIN cell AS f ON f.cell_id = c.identity ->> 'fit_cell_id'
LEFT JOIN timed AS s
    ON s.setting_id = c.setting_id AND s.method = c.method AND s.method_revision = c.method_revision
    AND s.params = c.params::VARCHAR AND s.kv_policy IS NOT DISTINCT FROM c.kv_policy
WHERE c.kind = 'quality'
ORDER BY n.cell_id;
