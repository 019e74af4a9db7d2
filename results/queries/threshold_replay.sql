-- Replay of the softmax-gap gate over every probe: exit at the first block where p1 - p2 exceeds the threshold, else at
-- the last. One row a model, task and threshold. Simulated: in a real run an early exit changes later keys and tokens.
WITH thresholds AS (
    SELECT unnest(range(5, 100, 5)) / 100 AS threshold
),
replayed AS (
    SELECT
        model, task_label, threshold, top1_id, full_token_id, len(p1) AS blocks,
        coalesce(
            list_position(list_transform(list_zip(p1, p2), lambda top: top[1] - top[2] > threshold), true), len(p1)
        ) AS exit_layer
    FROM probe_trace CROSS JOIN thresholds
    WHERE NOT random_weights
)
SELECT
    model, task_label, threshold, avg(exit_layer) AS mean_exit_layer, any_value(blocks) AS blocks,
    avg((top1_id[exit_layer] = full_token_id)::INT) AS token_match, count(*) AS n
FROM replayed
GROUP BY model, task_label, threshold
ORDER BY model, task_label, threshold;
