-- Read-outs of parts of blocks: largest probability, and how often its token is that of the last block, means over
-- the recorded tokens, one row per model, block and part. Tokens of all tasks of a model are combined.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH chosen AS (  -- if a model was recorded several times on a task: the run with the most documents, of these the latest
    SELECT attempt_id FROM sublayer_trace
    WHERE NOT random_weights
    GROUP BY task_label, model, attempt_id
    QUALIFY row_number() OVER (
        PARTITION BY task_label, model ORDER BY count(DISTINCT doc_key) DESC, attempt_id DESC
    ) = 1
),
final AS (
    SELECT attempt_id, doc_key, position, arg_max(top_ids[1], block) AS final_id
    FROM sublayer_trace SEMI JOIN chosen USING (attempt_id)
    WHERE read_out = 'block'
    GROUP BY ALL
),
documents AS (
    SELECT s.model, s.attempt_id, s.doc_key, s.block, s.read_out, sum(s.top_p[1]::DOUBLE) AS p1,
           count(*) FILTER (s.top_ids[1] = f.final_id) AS equal, count(*) AS n
    FROM sublayer_trace AS s JOIN final AS f USING (attempt_id, doc_key, position)
    GROUP BY ALL
)
SELECT model || coalesce(', ' || training, '') AS series, model, read_out, block,
       round(sum(p1) / sum(n), 6) AS probability, round(half_width(p1, n), 6) AS probability_half_width,
       round(sum(equal) / sum(n), 6) AS share, round(half_width(equal, n), 6) AS share_half_width,
       CAST(sum(n) AS BIGINT) AS n
FROM documents
JOIN objectives USING (model)
GROUP BY ALL
ORDER BY series, model, read_out, block;
