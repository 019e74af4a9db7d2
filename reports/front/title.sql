-- Runs of the report: one row per model, task, machine and commit, timed or not.
SELECT
    r.model, r.model_kind, r.blocks, r.parameters, r.random_weights, r.task_label AS task, d.source = 'builtin' AS is_generated,
    max(r.documents) AS documents, r.kind = 'timing' AS is_timed,
    coalesce(r.gpu, r.cpu) AS machine, r.threads, r.gpu IS NOT NULL AS has_gpu, r.commit, r.dirty,
    strftime(min(r.started_at), '%Y-%m-%d') AS first_day, strftime(max(r.started_at), '%Y-%m-%d') AS last_day
FROM runs AS r
JOIN cell AS c USING (cell_id)
JOIN dataset_artifact AS d USING (data_id)
WHERE r.kind IN ('quality', 'timing')
GROUP BY ALL
ORDER BY ALL;
