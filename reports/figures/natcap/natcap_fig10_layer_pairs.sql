-- Similarity of each pair of a model's blocks: mean cosine of their states and divergence of their read-outs over
-- the recorded tokens, one row per model and pair.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH trained AS (
    SELECT model, CASE WHEN max(loss) IN ('last', 'exit-heads') THEN 'last'
                       WHEN max(loss) IN ('weighted', 'branchynet', 'layer-skip') THEN 'joint' END AS training
    FROM trainings GROUP BY model
),
chosen AS (  -- if a model was recorded several times on a task: the run with the most documents, of these the latest
    SELECT attempt_id FROM layer_pairs
    WHERE NOT random_weights
    GROUP BY task_label, model, attempt_id
    QUALIFY row_number() OVER (
        PARTITION BY task_label, model ORDER BY count(DISTINCT doc_key) DESC, attempt_id DESC
    ) = 1
)
SELECT model || coalesce(', ' || nullif(training, model), '') AS series, model, block_a, block_b,
       round(sum(cosine * n) / sum(n), 6) AS cosine, round(half_width(cosine * n, n), 6) AS cosine_half_width,
       round(sum(jsd * n) / sum(n), 6) AS jsd, round(half_width(jsd * n, n), 6) AS jsd_half_width,
       CAST(sum(n) AS BIGINT) AS n
FROM layer_pairs SEMI JOIN chosen USING (attempt_id)
LEFT JOIN trained USING (model)
GROUP BY ALL
ORDER BY series, model, block_a, block_b;
