-- Provenance: Which cells have not succeeded, and why?
-- The latest attempt of each such cell: its status, reason, exit code or signal, and the last line of its log. The
-- status skipped is not an error: the reason says what the method does not support.
SELECT
    status, kind, model, task_label, method, label, kv_policy, seed, reason, exit_code, signal, seconds,
    string_split(rtrim(log_tail, chr(10)), chr(10))[-1] AS last_line, started_at, attempt_id
FROM failures
ORDER BY status, kind, model, task_label, method, label, kv_policy, seed, attempt_id;
