-- Agreement: Which threshold gives 99% agreement, by task?
-- The smallest threshold of the softmax-gap gate at which the share $agreement of the tokens is full depth's, by replay
-- over a probe, and the mean exit layer there. Simulated: in a real run an early exit changes later keys, values and
-- tokens.
-- $agreement = 0.99: share of tokens that must equal full depth's
-- $documents = 200: documents of each probe to replay, the first by key; many millions of tokens take a while
WITH probes AS MATERIALIZED (
    SELECT row_number() OVER () AS number, attempt_id, model, task_label, first_token FROM plain_probes
    WHERE is_largest AND NOT random_weights
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
),
agreed AS (
    SELECT
        model, task_label, threshold, sum(equal) / sum(n) AS token_match, sum(exit_layers) / sum(n) AS mean_exit_layer, sum(n)::BIGINT AS n
    FROM summed JOIN probes USING (number) GROUP BY ALL
)
SELECT *
FROM agreed
WHERE token_match >= $agreement
QUALIFY row_number() OVER (PARTITION BY model, task_label ORDER BY threshold) = 1
ORDER BY model, task_label;
