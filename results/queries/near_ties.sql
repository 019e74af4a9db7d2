-- Agreement: How many divergences are near-ties of full depth's two best tokens?
-- Each document counts once, where its output first differs. near_tie: the logits of full depth's two best tokens are
-- less than $margin nats apart there, by the probe. said_second: the run emitted full depth's second choice.
-- behind_end: the run continued after full depth had ended, which does not count as a near-tie.
-- $margin = 0.1: difference in nats; rounding alone changes logits by far less
-- $model = *: models, a pattern
-- $method = *: methods, a pattern
-- $documents = 100: documents of each run, the first by key
WITH beside AS (
    SELECT r.attempt_id, p.attempt_id AS probe_id
    FROM runs AS r JOIN plain_probes AS p ON p.full_depth_cell_id = r.full_depth_cell_id AND p.is_latest
    WHERE NOT r.is_full_depth AND r.model GLOB $model AND r.method GLOB $method
),
chosen AS (
    SELECT attempt_id, doc_key FROM sample SEMI JOIN beside USING (attempt_id)
    QUALIFY row_number() OVER (PARTITION BY attempt_id ORDER BY doc_key) <= $documents
),
first_difference AS (
    SELECT
        attempt_id, any_value(probe_id) AS probe_id, doc_key, min(position) FILTER (differs) AS position,
        arg_min(token_id, position) FILTER (differs) AS token_id
    FROM (SELECT *, token_id IS DISTINCT FROM full_token_id AS differs FROM token_exit)
    SEMI JOIN chosen USING (attempt_id, doc_key)
    JOIN beside USING (attempt_id)
    GROUP BY attempt_id, doc_key
    -- Traces without full depth's tokens are excluded.
    HAVING count(full_token_id) > 0 AND count_if(differs) > 0
),
probed AS (
    SELECT attempt_id, doc_key, position, ln(p1[-1]) - ln(p2[-1]) AS margin, top2_id[-1] AS second_id
    FROM probe_token AS p
    SEMI JOIN first_difference AS f
        ON f.probe_id = p.attempt_id AND f.doc_key = p.doc_key AND f.position = p.position
    WHERE p.choice IS NULL
)
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, count(*) AS divergences,
    count(*) FILTER (p.margin < $margin) / count(*) AS share_near_tie,
    count(*) FILTER (p.second_id = f.token_id) / count(*) AS share_said_second, median(p.margin) AS median_margin,
    count_if(p.margin IS NULL) / count(*) AS share_behind_end
FROM first_difference AS f
JOIN runs AS r USING (attempt_id)
LEFT JOIN probed AS p ON p.attempt_id = f.probe_id AND p.doc_key = f.doc_key AND p.position = f.position
GROUP BY r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id
ORDER BY r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id;
