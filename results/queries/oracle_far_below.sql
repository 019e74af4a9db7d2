-- Exits: At which tokens does a method run many more blocks than needed?
-- oracle_layer: first block whose most probable token is full depth's, in the probe; settled_at: first block from which
-- it stays so. Only tokens before the output differs from full depth's count, because both then have the same context.
-- Largest excess first. Many rows of one token or kind show where the gate is too cautious.
-- $model = *: models, a pattern
-- $task = *: task labels of the suite, a pattern
-- $method = *: methods, a pattern
-- $blocks = 2: minimum number of excess blocks
-- $documents = 20: documents of each run, the first by key
-- $rows = 100: tokens to list
WITH beside AS (
    SELECT r.attempt_id, p.attempt_id AS probe_id, r.tokenizer_sha256, r.first_token
    FROM runs AS r JOIN plain_probes AS p ON p.full_depth_cell_id = r.full_depth_cell_id AND p.is_latest
    WHERE NOT r.is_full_depth AND r.model GLOB $model AND r.task_label GLOB $task AND r.method GLOB $method
),
chosen AS (
    SELECT attempt_id, doc_key FROM sample SEMI JOIN beside USING (attempt_id)
    QUALIFY row_number() OVER (PARTITION BY attempt_id ORDER BY doc_key) <= $documents
),
emitted AS (
    SELECT
        t.attempt_id, t.doc_key, t.position, t.token_id, t.token_kind, t.exit_layer, b.probe_id, b.tokenizer_sha256,
        b.first_token,
        min(t.position) FILTER (t.token_id IS DISTINCT FROM t.full_token_id) OVER document AS differs_at
    FROM token_exit AS t SEMI JOIN chosen USING (attempt_id, doc_key) JOIN beside AS b USING (attempt_id)
    WINDOW document AS (PARTITION BY t.attempt_id, t.doc_key)
    -- Traces without full depth's tokens are excluded.
    QUALIFY count(t.full_token_id) OVER document > 0
)
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, e.doc_key, e.position, e.token_id, v.text,
    e.token_kind, e.exit_layer, p.first_match AS oracle_layer, p.stable_from AS settled_at,
    e.exit_layer - p.first_match AS blocks_too_many
FROM emitted AS e
JOIN run_names AS r USING (attempt_id)
JOIN probe_token AS p ON p.attempt_id = e.probe_id AND p.doc_key = e.doc_key AND p.position = e.position
LEFT JOIN vocabulary AS v ON v.tokenizer_sha256 = e.tokenizer_sha256 AND v.token_id = e.token_id
WHERE p.choice IS NULL AND coalesce(e.position < e.differs_at, true) AND e.exit_layer - p.first_match >= $blocks
    AND NOT (e.position = 1 AND e.first_token = 'full')  -- read from the prompt's own pass, it could not leave
ORDER BY
    blocks_too_many DESC, r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id, e.doc_key,
    e.position
LIMIT $rows;
