-- Provenance: What should be known about runs before they are cited?
-- By rule: how severe (3: do not cite, 2: look before, 1: a remark), how many runs, and one of the messages. The view
-- `qc` has them run by run.
SELECT severity, rule, kind, count(*) AS runs, count(DISTINCT model) AS models, min(message) AS example
FROM qc
GROUP BY severity, rule, kind
ORDER BY severity DESC, rule, kind;
