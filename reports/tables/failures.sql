-- Cells whose latest attempt did not succeed, with the reason.
SELECT model, task_label AS task, kind, method, params, kv_policy, status, reason, conforms, cell_id, attempt_id
FROM failures
ORDER BY model, task, kind, method, params, cell_id;
