-- Agreement: How many outputs are identical to full depth's, and where do the others first differ?
-- One row per real run: share of documents whose output is identical to full depth's, and the mean position of the
-- first differing token in the others. If one output is a prefix of the other, they differ where the shorter one ends.
-- Runs whose token ids were omitted by an export are excluded.
SELECT
    a.model, a.task_label, a.method, a.label, a.kv_policy, a.seed,
    avg((a.first_divergence IS NULL)::INT) AS share_identical, avg(a.first_divergence) AS mean_first_difference,
    count(*) AS documents
FROM answers AS a
JOIN runs AS r USING (attempt_id)
WHERE NOT r.is_full_depth AND a.equal_tokens IS NOT NULL
GROUP BY a.model, a.task_label, a.method, a.label, a.kv_policy, a.seed, a.cell_id
ORDER BY a.model, a.task_label, a.method, a.label, a.kv_policy, a.seed, a.cell_id;
