-- Quality: How do outputs end, and are they as long as full depth's?
-- A method that reaches the limit of new tokens more often has missed the end of its answer. If outputs are much
-- shorter than full depth's (length_factor), the method may have a high precision and seem fast.
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, avg(s.n_output) AS mean_tokens,
    avg(f.n_output) AS full_mean_tokens, sum(s.n_output) / nullif(sum(f.n_output), 0) AS length_factor,
    count_if(s.n_output <> f.n_output) / count(*) AS share_of_other_length,
    count_if(s.stop_reason = 'length') / count(*) AS share_at_limit,
    count_if(f.stop_reason = 'length') / count(*) AS full_share_at_limit, count(*) AS documents
FROM runs AS r
JOIN sample AS s USING (attempt_id)
JOIN sample AS f ON f.attempt_id = r.full_depth_attempt_id AND f.doc_key = s.doc_key
WHERE NOT r.is_full_depth
GROUP BY r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id
ORDER BY r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id;
