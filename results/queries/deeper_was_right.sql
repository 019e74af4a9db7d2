-- Confidence: When a gate lets a wrong token go, how many blocks later would it have been right?
-- Each document counts once, at the first token that differs from full depth's. blocks_missing: the first block whose most
-- probable token is full depth's, less the exit layer, mean over these; share_next: how often one more block was enough;
-- confidence: of the gate, mean.
SELECT model, task_label, method, label, kv_policy, seed, blocks_missing, share_next, confidence, errors
FROM (
    SELECT attempt_id, avg(first_match - exit_layer) AS blocks_missing, avg((first_match - exit_layer = 1)::INTEGER) AS share_next,
        avg(score) AS confidence, count(*) AS errors
    FROM token_probe WHERE diverged AND exit_layer < first_match AND execution = 'real' GROUP BY attempt_id
) JOIN run_names USING (attempt_id)
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id;
