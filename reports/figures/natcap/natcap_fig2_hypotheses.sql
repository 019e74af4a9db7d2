-- One token per model: of those that settle at the latest block, the one with the highest probability at the last
-- block. Its three most probable tokens after each block, as text, one row per model, block and rank. Outputs of
-- different models do not align, so each model has its own token.
WITH
-- continues in shared/late_token.sql
chosen AS (
    SELECT *, unnest(range(1, len(p1) + 1)) AS block FROM probe_trace SEMI JOIN first_of_equals
        USING (attempt_id, doc_key, position)
),
ranked AS (
    SELECT *, unnest([
        {'rank': 1, 'id': top1_id[block], 'p': p1[block]},
        {'rank': 2, 'id': top2_id[block], 'p': p2[block]},
        {'rank': 3, 'id': top3_id[block], 'p': p3[block]}
    ]) AS candidate
    FROM chosen
)
SELECT c.model, c.task_label AS task, c.doc_key, c.position, c.first_match, c.block, c.candidate.rank AS rank,
       c.candidate.id AS token_id, v.text, c.candidate.p AS probability, c.candidate.id = c.full_token_id AS is_final
FROM ranked AS c
JOIN runs AS r USING (attempt_id)
LEFT JOIN vocabulary AS v ON v.tokenizer_sha256 = r.tokenizer_sha256 AND v.token_id = c.candidate.id
ORDER BY c.model, c.block, rank;
