-- Similarity of each pair of a model's blocks: mean cosine of their states and divergence of their read-outs over
-- the recorded tokens, one row per model and pair.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH chosen AS (  -- if a model was recorded several times on a task: the run with the most documents, of these the latest
    SELECT attempt_id FROM layer_pairs
    WHERE NOT random_weights
    GROUP BY task_label, model, attempt_id
    QUALIFY row_number() OVER (
        PARTITION BY task_label, model ORDER BY count(DISTINCT doc_key) DESC, attempt_id DESC
    ) = 1
)
SELECT model || coalesce(', ' || training, '') AS series, model, block_a, block_b,
       round(sum(cosine * n) / sum(n), 6) AS cosine, round(half_width(cosine * n, n), 6) AS cosine_half_width,
       round(sum(jsd * n) / sum(n), 6) AS jsd, round(half_width(jsd * n, n), 6) AS jsd_half_width,
       CAST(sum(n) AS BIGINT) AS n
FROM layer_pairs SEMI JOIN chosen USING (attempt_id)
JOIN objectives USING (model)
GROUP BY ALL
ORDER BY series, model, block_a, block_b;
