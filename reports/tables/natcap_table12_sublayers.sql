-- Read-outs of every part of every block for one token: the ten most probable tokens, as text, and the largest of
-- their probabilities, one row per model, block and part. The token is the recorded one of each model whose final token
-- becomes the most probable at the latest block; of several, the first by task, document and position.
WITH streams AS (
    SELECT model, task_label, attempt_id, doc_key, position, list(top_ids[1] ORDER BY block) AS ids
    FROM sublayer_trace
    WHERE NOT random_weights AND read_out = 'block'
    GROUP BY ALL
),
chosen AS (
    SELECT attempt_id, doc_key, position, ids[-1] AS final_id FROM streams
    QUALIFY row_number() OVER (
        PARTITION BY model ORDER BY list_position(ids, ids[-1]) DESC, task_label, doc_key, position, attempt_id
    ) = 1
),
ranked AS (
    SELECT s.*, c.final_id, unnest(s.top_ids) AS id, generate_subscripts(s.top_ids, 1) AS rank
    FROM sublayer_trace AS s JOIN chosen AS c USING (attempt_id, doc_key, position)
),
read AS (
    SELECT k.model, coalesce(t.training, 'not known') AS training, k.task_label AS task, k.doc_key, k.position, k.block,
           k.read_out, k.top_p[1] AS probability,
           string_agg(coalesce(replace(v.text, chr(10), '\n'), '#' || k.id), ' ' ORDER BY k.rank) AS tokens,
           string_agg(k.id::VARCHAR, ' ' ORDER BY k.rank) AS ids,
           min(k.rank) FILTER (k.id = k.final_id) AS final_rank, k.entropy
    FROM ranked AS k
    JOIN runs AS r USING (attempt_id)
    LEFT JOIN vocabulary AS v ON v.tokenizer_sha256 = r.tokenizer_sha256 AND v.token_id = k.id
    JOIN objectives AS t ON t.model = k.model
    GROUP BY ALL
)
FROM read
ORDER BY model, block,
    list_position(['self-attention', 'after-self-attention', 'cross-attention', 'after-attention', 'feed-forward',
                   'block'], read_out);
