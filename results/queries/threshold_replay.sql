-- Agreement: How do depth and agreement depend on the threshold?
-- Replay of the softmax-gap gate over a probe: exit at the first block where p1 - p2 exceeds the threshold, else at the
-- last. One row per model, task and threshold. Simulated: in a real run an early exit changes later keys, values and
-- tokens.
-- $documents = 200: documents of each probe to replay, the first by key; many millions of tokens take a while
WITH probes AS MATERIALIZED (
    SELECT row_number() OVER () AS number, attempt_id, model, task_label, first_token FROM plain_probes WHERE is_largest AND NOT random_weights
),
chosen AS (
    SELECT attempt_id, doc_key
    FROM document_probe SEMI JOIN probes USING (attempt_id)
    QUALIFY row_number() OVER (PARTITION BY attempt_id ORDER BY doc_key) <= $documents
),
thresholds AS (
    SELECT unnest(range(5, 100, 5)) / 100 AS threshold
),
probed AS (
    SELECT
        number, top1_id, full_token_id, len(p1) AS blocks, list_transform(list_zip(p1, p2), lambda top: top[1] - top[2]) AS gap,
        position = 1 AND first_token = 'full' AS stays  -- read from the prompt's own pass
    FROM (FROM probe_token SEMI JOIN chosen USING (attempt_id, doc_key) WHERE choice IS NULL) JOIN probes USING (attempt_id)
),
replayed AS (
    SELECT *, CASE WHEN stays THEN blocks ELSE
        coalesce(list_position(list_transform(gap, lambda x: x > threshold), true), blocks) END AS exit_layer
    FROM probed CROSS JOIN thresholds
),
summed AS (
    SELECT
        number, threshold, sum(exit_layer) AS exit_layers, count_if(top1_id[exit_layer] = full_token_id) AS equal,
        any_value(blocks) AS blocks, count(*) AS n
    FROM replayed GROUP BY ALL
)
SELECT
    model, task_label, threshold, sum(exit_layers) / sum(n) AS mean_exit_layer, any_value(blocks) AS blocks, sum(equal) / sum(n) AS token_match,
    sum(n)::BIGINT AS n
FROM summed JOIN probes USING (number)
GROUP BY model, task_label, threshold
ORDER BY model, task_label, threshold;
