-- Findings about the runs, most severe first: one row per finding, with the runs that have it. Findings that differ
-- only in their numbers are separate rows.
SELECT severity, rule, message, count(*) AS runs, string_agg(DISTINCT kind, ', ' ORDER BY kind) AS kind,
       string_agg(DISTINCT model, ', ' ORDER BY model) AS model,
       string_agg(DISTINCT task_label, ', ' ORDER BY task_label) AS task,
       string_agg(DISTINCT method, ', ' ORDER BY method) AS method, min(cell_id) AS cell_id
FROM qc
GROUP BY severity, rule, message
ORDER BY severity DESC, rule, runs DESC, message;
