-- Confidence: Does the gap between the two best tokens predict whether a block already agrees with full depth?
-- A reliability table over all blocks but the last of a probe: number of tokens and blocks by p1 - p2 in bins of 0.1,
-- and the share whose top-1 is full depth's. A threshold is as good as the agreement just above it. overconfidence: the
-- gap minus that share, if positive.
-- $model = *: models, a pattern
-- $documents = 100: documents of each probe, the first by key
WITH chosen AS (
    SELECT r.attempt_id, s.doc_key
    FROM plain_probes AS r JOIN sample AS s ON s.attempt_id = r.full_depth_attempt_id
    WHERE r.is_largest AND NOT r.random_weights AND r.model GLOB $model
    QUALIFY row_number() OVER (PARTITION BY r.attempt_id ORDER BY s.doc_key) <= $documents
),
blocks AS (
    SELECT
        model, task_label, unnest(p1[:-2]) - unnest(p2[:-2]) AS gap, unnest(top1_id[:-2]) = full_token_id AS agrees
    FROM probe_trace SEMI JOIN chosen USING (attempt_id, doc_key)
)
SELECT
    model, task_label, least(floor(10 * gap), 9)::INTEGER / 10 AS gap_from, avg(gap) AS mean_gap,
    count_if(agrees) / count(*) AS agreement, count(*) AS n
FROM blocks
GROUP BY ALL
ORDER BY model, task_label, gap_from;
