-- Provenance: What should be known about runs before they are cited?
-- One row per rule: severity (3: do not cite, 2: look before you cite, 1: remark), number of runs, and one of the
-- messages. The view `qc` lists them by run.
SELECT severity, rule, kind, count(*) AS runs, count(DISTINCT model) AS models, min(message) AS example
FROM qc
GROUP BY severity, rule, kind
ORDER BY severity DESC, rule, kind;
