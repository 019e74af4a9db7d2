-- Exits: What does every method say at one token, and where does it leave?
-- One row a setting at a position of a document, the earliest exit first. Without a document the first by key of each model and
-- task. diverged: an earlier token differed already.
-- $position = 1: of the token in the answer
-- $document = *: key of the document, a pattern
SELECT
    model, task_label, doc_key, position, method, label, kv_policy, seed, execution, exit_layer, token_id, text, full_text,
    equal_full, diverged, score
FROM token_trace
WHERE choice IS NULL AND position = $position AND doc_key GLOB $document
QUALIFY doc_key = min(doc_key) OVER (PARTITION BY model, task_label)
ORDER BY model, task_label, exit_layer, method, label, kv_policy, seed, execution, cell_id;
