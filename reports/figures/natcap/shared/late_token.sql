-- Of the tokens that settle at a model's latest block, the one with the highest probability at the last block.
late AS (
    SELECT model, task_label, attempt_id, doc_key, position, p_final[-1] AS sureness
    FROM probe_trace
    JOIN (SELECT model, max(first_match) AS first_match FROM probe_trace WHERE choice IS NULL AND NOT random_weights GROUP BY model)
        USING (model, first_match)
    WHERE choice IS NULL AND NOT random_weights
    QUALIFY rank() OVER (PARTITION BY model ORDER BY sureness DESC) = 1
),
first_of_equals AS (
    SELECT model, attempt_id, doc_key, position FROM late
    QUALIFY row_number() OVER (PARTITION BY model ORDER BY task_label, doc_key, position, attempt_id) = 1
),
