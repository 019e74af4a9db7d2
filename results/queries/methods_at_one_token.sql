-- Exits: Which token does each method emit at one position, and where does it exit?
-- One row per setting at one position of a document, the earliest exit first. By default, the first document by key of
-- each model and task. diverged: an earlier token already differed from full depth's.
-- $position = 1: position of the token in the answer
-- $document = *: key of the document, a pattern
SELECT
    model, task_label, doc_key, position, method, label, kv_policy, seed, execution, exit_layer, token_id, text, full_text,
    equal_full, diverged, score
FROM token_trace
WHERE choice IS NULL AND position = $position AND doc_key GLOB $document
QUALIFY doc_key = min(doc_key) OVER (PARTITION BY model, task_label)
ORDER BY model, task_label, exit_layer, method, label, kv_policy, seed, execution, cell_id;
