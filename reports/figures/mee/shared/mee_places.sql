ranked AS (
    SELECT attempt_id, doc_key, count(*) OVER (PARTITION BY attempt_id) AS documents,
           row_number() OVER (PARTITION BY attempt_id ORDER BY round(mean_s, 9) DESC, doc_key) AS place
    FROM (
        SELECT attempt_id, doc_key, sum(cosine_last) / sum(n) AS mean_s
        FROM probe_by_document JOIN (SELECT attempt_id, blocks FROM chosen) USING (attempt_id)
        WHERE block < blocks
        GROUP BY ALL
    )
),
