-- Confidence: How do predictions and states change from block to block?
-- Means over probed tokens: agreement of the block's top-1 with full depth's, probability of full depth's token, and
-- entropy (nats). Also cosine similarity to the previous and to the last block, and Jensen-Shannon divergence from the
-- last block (nats).
-- $model = *: models, a pattern
-- $documents = 50: documents of each probe, the first by key
WITH chosen AS (
    SELECT r.attempt_id, s.doc_key
    FROM plain_probes AS r JOIN sample AS s ON s.attempt_id = r.full_depth_attempt_id
    WHERE r.is_largest AND NOT r.random_weights AND r.model GLOB $model
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY s.doc_key) <= $documents
),
blocks AS (
    SELECT
        model, task_label, generate_subscripts(p1, 1) AS block, unnest(top1_id) = full_token_id AS agrees,
        unnest(p_final) AS p_final, unnest(entropy) AS entropy, unnest(cosine_previous) AS cosine_previous,
        unnest(cosine_last) AS cosine_last, unnest(jsd_last) AS jsd_last
    FROM probe_trace SEMI JOIN chosen USING (attempt_id, doc_key)
)
SELECT
    model, task_label, block, count_if(agrees) / count(*) AS agreement, avg(p_final) AS p_final,
    avg(entropy) AS entropy,
    avg(cosine_previous) AS cosine_previous, avg(cosine_last) AS cosine_last, avg(jsd_last) AS jsd_last, count(*) AS n
FROM blocks
GROUP BY model, task_label, block
ORDER BY model, task_label, block;
