-- The smallest threshold of the softmax-gap gate at which a share of the tokens is full depth's, by replay over every
-- probe, and how deep tokens go there. Simulated: in a real run an early exit changes later keys and tokens.
-- $agreement = 0.99: share of tokens that must equal full depth's
WITH thresholds AS (
    SELECT unnest(range(1, 100)) / 100 AS threshold
),
replayed AS (
    SELECT
        model, task_label, threshold, top1_id, full_token_id,
        coalesce(
            list_position(list_transform(list_zip(p1, p2), lambda top: top[1] - top[2] > threshold), true), len(p1)
        ) AS exit_layer
    FROM probe_trace CROSS JOIN thresholds
),
agreed AS (
    SELECT
        model, task_label, threshold, avg((top1_id[exit_layer] = full_token_id)::INTEGER) AS token_match,
        avg(exit_layer) AS mean_exit_layer, count(*) AS n
    FROM replayed GROUP BY ALL
)
SELECT *
FROM agreed
WHERE token_match >= $agreement
QUALIFY row_number() OVER (PARTITION BY model, task_label ORDER BY threshold) = 1
ORDER BY model, task_label;
