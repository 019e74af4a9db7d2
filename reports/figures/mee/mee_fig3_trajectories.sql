-- The token of each model that settles latest, of several the most probable: probability of its candidates by block.
-- A candidate is the final token, at every block, or one of the three most probable, at blocks that give it more than
-- 0.1, spelled where the tokenizer is recorded. Outputs of different models do not align, so each has its own token.
WITH
-- continues in ../natcap/shared/late_token.sql
chosen AS (
    SELECT p.*, r.tokenizer_sha256
    FROM probe_trace AS p JOIN runs AS r USING (attempt_id)
    SEMI JOIN first_of_equals USING (attempt_id, doc_key, position)
),
blocks AS (
    SELECT *, unnest(range(1, len(p_final) + 1)) AS block FROM chosen
),
candidates AS (
    SELECT model, block, full_token_id AS candidate_id, p_final[block] AS probability, true AS is_final
    FROM blocks
    UNION ALL
    SELECT model, block, candidate.id, candidate.p, false
    FROM (
        SELECT *, unnest([
            {'id': top1_id[block], 'p': p1[block]},
            {'id': top2_id[block], 'p': p2[block]},
            {'id': top3_id[block], 'p': p3[block]}
        ]) AS candidate
        FROM blocks
    )
    WHERE candidate.id <> full_token_id AND candidate.p > 0.1
)
SELECT model, task_label AS task, doc_key, position, token_kind, first_match, candidate_id, v.text AS candidate,
       is_final, block, probability
FROM candidates
JOIN chosen USING (model)
LEFT JOIN vocabulary AS v ON v.tokenizer_sha256 = chosen.tokenizer_sha256 AND v.token_id = candidate_id
ORDER BY model, is_final DESC, min(block) OVER (PARTITION BY model, candidate_id), candidate_id, block;
