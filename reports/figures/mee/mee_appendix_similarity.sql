-- Cosine of a block's state to the last block's, both after the final norm, mean over the tokens of easy and of
-- difficult documents (the quarters of highest and lowest mean over tokens and blocks 1..L-1), and half its 95%
-- interval over documents. One row a model, task, class and block. If a model was probed several times on a task, the
-- run with the most documents counts. Rounded, because the last digits of sums depend on the order in which threads
-- add.
WITH chosen AS (
    SELECT attempt_id, task_label AS task, model, blocks FROM plain_probes WHERE is_largest AND NOT random_weights
),
-- continues in shared/mee_places.sql
classed AS (
    SELECT attempt_id, doc_key, if(place <= documents // 4, 'easy', 'difficult') AS class
    FROM ranked
    WHERE place <= documents // 4 OR place > documents - documents // 4
)
SELECT chosen.task, chosen.model, class, block, blocks, round(sum(cosine_last) / sum(n), 6) AS cosine,
       round(half_width(cosine_last, n), 6) AS half_width, count(*) AS documents
FROM probe_by_document JOIN classed USING (attempt_id, doc_key) JOIN chosen USING (attempt_id)
GROUP BY chosen.task, chosen.model, class, block, blocks
ORDER BY chosen.model, chosen.task, class DESC, block;
