-- Cost and speed: Are long answers accelerated as much as short ones?
-- Timed documents (or batches of them), grouped by the number of tokens in the method's answer: time of full depth's
-- answers over the method's, prompts included, and decoding time in ms per token.
SELECT
    t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.tokens, sum(t.full_ms) / sum(t.ms) AS speedup,
    avg(d.ms_per_token) AS ms_per_token, count(*) AS documents
FROM timings AS t JOIN timings AS d USING (attempt_id, doc_key, arm)
WHERE t.arm = 'method' AND t.phase = 'total' AND d.phase = 'decode'
GROUP BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.tokens, t.cell_id
ORDER BY t.model, t.task_label, t.method, t.label, t.kv_policy, t.seed, t.cell_id, t.tokens;
