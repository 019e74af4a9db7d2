probes AS (
    SELECT r.attempt_id, r.task, r.task_label, r.model, t.loss, r.blocks,
           r.conditions AS setting
    FROM runs AS r JOIN objectives AS t USING (model)
    WHERE r.kind = 'probe' AND r.record IS NULL AND NOT r.random_weights
          AND t.loss IN ('last', 'weighted', 'unknown')
    QUALIFY row_number() OVER (
        PARTITION BY r.task_label, r.model, setting ORDER BY r.documents DESC, r.attempt_id DESC
    ) = 1
),
