-- Easy and difficult documents: how similar the states of their tokens are to the last block's, s(l), 1 <= l < L.
-- One row per model, task and class; a class is a quarter of the documents, by the mean of s over tokens and blocks.
-- Then the published classes. If a model was probed several times on a task, the run with the most documents counts.
-- Rounded where the last digits of a sum depend on the order in which threads add.
WITH settled AS (
    SELECT attempt_id, doc_key, count(*) AS length, sum(first_similar) AS first_similar,
           sum(first_similar * first_similar) AS first_similar_squared, sum(similar_blocks) AS similar_blocks,
           sum(similar_blocks * similar_blocks) AS similar_squared, count_if(grows_from = 1) AS grows,
           count_if(grows_from <= 1 + round(blocks / 6)) AS grows_after_sixth,
           count_if(grows_from <= 1 + round(blocks / 3)) AS grows_after_third,
           count_if(nearly_grows_from = 1) AS nearly_grows,
           count_if(nearly_grows_from <= 1 + round(blocks / 6)) AS nearly_grows_after_sixth,
           count_if(nearly_grows_from <= 1 + round(blocks / 3)) AS nearly_grows_after_third, any_value(tolerance) AS tolerance
    FROM probe_trace JOIN (SELECT attempt_id, blocks FROM runs) USING (attempt_id)
    WHERE choice IS NULL AND NOT random_weights AND blocks > 1 AND first_similar IS NOT NULL
    GROUP BY ALL
),
chosen AS (
    SELECT attempt_id, model, task_label AS task, blocks
    FROM runs JOIN (SELECT attempt_id, count(*) AS probed FROM settled GROUP BY ALL) USING (attempt_id)
    QUALIFY row_number() OVER (PARTITION BY task_label, model ORDER BY probed DESC, attempt_id DESC) = 1
),
-- continues in ../figures/mee/shared/mee_places.sql
classed AS (
    SELECT attempt_id, doc_key, if(place <= documents // 4, 'easy', 'difficult') AS class
    FROM ranked
    WHERE place <= documents // 4 OR place > documents - documents // 4
),
printed AS (
    SELECT model, dataset AS task, split_part(setting, ' ', 1) AS class, metric, value, std,
           max(try_cast(regexp_extract(split, '(\d+) per class', 1) AS BIGINT)) OVER () AS n
    FROM published
    WHERE source = 'MEE paper' AND figure_or_table LIKE 'Table 1%' AND EXISTS (FROM classed)
)
SELECT 'ours' AS origin, model, task, class, count(*) AS n, CAST(sum(length) AS BIGINT) AS tokens, max(blocks) AS blocks,
       sum(first_similar) / sum(length) AS first_similar_mean, half_width(first_similar, length) AS first_similar_half,
       sqrt(sum(first_similar_squared) / sum(length) - (sum(first_similar) / sum(length)) ** 2) AS first_similar_std,
       sum(similar_blocks) / sum(length) AS similar_mean, half_width(similar_blocks, length) AS similar_half,
       sqrt(sum(similar_squared) / sum(length) - (sum(similar_blocks) / sum(length)) ** 2) AS similar_std,
       avg(length) AS length_mean, mean_half_width(length) AS length_half, round(stddev_pop(length), 6) AS length_std,
       sum(grows) / sum(length) AS grows, half_width(grows, length) AS grows_half,
       sum(grows_after_sixth) / sum(length) AS grows_after_sixth,
       half_width(grows_after_sixth, length) AS grows_after_sixth_half,
       sum(grows_after_third) / sum(length) AS grows_after_third,
       half_width(grows_after_third, length) AS grows_after_third_half,
       sum(nearly_grows) / sum(length) AS nearly_grows, half_width(nearly_grows, length) AS nearly_grows_half,
       sum(nearly_grows_after_sixth) / sum(length) AS nearly_grows_after_sixth,
       half_width(nearly_grows_after_sixth, length) AS nearly_grows_after_sixth_half,
       sum(nearly_grows_after_third) / sum(length) AS nearly_grows_after_third,
       half_width(nearly_grows_after_third, length) AS nearly_grows_after_third_half,
       any_value(tolerance) AS tolerance,
       CAST(round(max(blocks) / 6) AS INTEGER) AS sixth, CAST(round(max(blocks) / 3) AS INTEGER) AS third
FROM settled JOIN classed USING (attempt_id, doc_key) JOIN chosen USING (attempt_id)
GROUP BY model, task, class
UNION ALL
SELECT 'published', model, task, class, max(n), NULL, 24,
       max(value) FILTER (metric = 'first_similar_layer'), NULL, max(std) FILTER (metric = 'first_similar_layer'),
       max(value) FILTER (metric = 'n_similar_states'), NULL, max(std) FILTER (metric = 'n_similar_states'),
       max(value) FILTER (metric = 'sequence_length'), NULL, max(std) FILTER (metric = 'sequence_length'),
       max(value) FILTER (metric = 'monotone_from_layer_0') / 100, NULL,
       max(value) FILTER (metric = 'monotone_from_layer_4') / 100, NULL,
       max(value) FILTER (metric = 'monotone_from_layer_8') / 100, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 4, 8
FROM printed
GROUP BY model, task, class
ORDER BY origin, model, task, class DESC;
