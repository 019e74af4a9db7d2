-- Easy and difficult documents: how similar the states of their tokens are to the last block's, s(l), 1 <= l < L.
-- One row a model, task and class; a class is a quarter of the documents, by the mean of s over tokens and blocks.
-- Rounded where the last digits of a sum depend on the order in which threads add.
WITH measured AS (
    SELECT model, task_label AS task, attempt_id, doc_key, len(cosine_last) AS blocks, first_similar, similar_blocks,
           grows_from, list_avg(cosine_last[:-2]) AS mean_s
    FROM probe_trace
    WHERE NOT random_weights AND len(cosine_last) > 1 AND first_similar IS NOT NULL
),
documents AS (
    SELECT model, task, attempt_id, doc_key, round(avg(mean_s), 9) AS mean_s, count(*) AS length
    FROM measured
    GROUP BY ALL
),
ranked AS (
    SELECT *,
           row_number() OVER (PARTITION BY model, task ORDER BY mean_s DESC, attempt_id, doc_key) AS place,
           count(*) OVER (PARTITION BY model, task) AS all_documents
    FROM documents
),
classed AS (
    SELECT *, if(place <= all_documents // 4, 'easy', 'difficult') AS class
    FROM ranked
    WHERE place <= all_documents // 4 OR place > all_documents - all_documents // 4
),
of_documents AS (
    SELECT model, task, class, count(*) AS n, avg(length) AS length_mean, round(stddev_pop(length), 6) AS length_std
    FROM classed
    GROUP BY ALL
)
SELECT model, task, class, of_documents.n, count(*) AS tokens, max(blocks) AS blocks,
       avg(first_similar) AS first_similar_mean, round(stddev_pop(first_similar), 6) AS first_similar_std,
       avg(similar_blocks) AS similar_mean, round(stddev_pop(similar_blocks), 6) AS similar_std,
       length_mean, length_std,
       avg(CAST(grows_from = 1 AS INTEGER)) AS grows,
       avg(CAST(grows_from <= 1 + round(blocks / 6) AS INTEGER)) AS grows_after_sixth,
       avg(CAST(grows_from <= 1 + round(blocks / 3) AS INTEGER)) AS grows_after_third,
       CAST(round(max(blocks) / 6) AS INTEGER) AS sixth, CAST(round(max(blocks) / 3) AS INTEGER) AS third
FROM measured
JOIN classed USING (model, task, attempt_id, doc_key)
JOIN of_documents USING (model, task, class)
GROUP BY model, task, class, of_documents.n, length_mean, length_std
ORDER BY model, task, class DESC;
