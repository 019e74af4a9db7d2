-- Agreement: How many outputs are identical to full depth's, and where do the others first differ?
-- One row per real run: share of documents whose output is identical to full depth's, and the mean position of the
-- first differing token in the others. If one output is a prefix of the other, they differ where the shorter one ends.
-- Runs whose token ids were omitted by an export are excluded.
WITH pairs AS (
    SELECT r.*, s.doc_key, s.output_ids, f.output_ids AS full_ids
    FROM runs AS r
    JOIN sample AS s USING (attempt_id)
    JOIN sample AS f ON f.attempt_id = r.full_depth_attempt_id AND f.doc_key = s.doc_key
    WHERE NOT r.is_full_depth AND len(s.output_ids) = s.n_output AND len(f.output_ids) = f.n_output
),
compared AS (
    SELECT
        *,
        list_position(
            list_transform(list_zip(output_ids, full_ids), lambda pair: pair[1] IS DISTINCT FROM pair[2]), true
        ) AS first_difference
    FROM pairs
)
SELECT
    model, task_label, method, label, kv_policy, seed, avg((first_difference IS NULL)::INT) AS share_identical,
    avg(first_difference) AS mean_first_difference, count(*) AS documents
FROM compared
GROUP BY model, task_label, method, label, kv_policy, seed, cell_id
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id;
