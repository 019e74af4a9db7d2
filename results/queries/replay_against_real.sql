-- Agreement: How far do replays of a probe deviate from real decodes of the same method?
-- A replay (simulated) does not model that an early exit changes later keys, values and tokens. One row per method that
-- has both, with the same full depth: real minus simulated. Trust replays only for quantities whose difference is
-- small.
SELECT
    q.model, q.task_label, q.method, q.label, q.kv_policy, q.seed, q.mean_exit_layer,
    s.mean_exit_layer AS simulated_exit_layer, q.mean_exit_layer - s.mean_exit_layer AS exit_layer_off, q.token_match,
    s.token_match AS simulated_match, q.token_match - s.token_match AS match_off
FROM frontier AS q
JOIN runs AS r ON r.attempt_id = q.attempt_id
JOIN runs AS simulated
    ON simulated.kind = 'replay' AND simulated.full_depth_cell_id = r.full_depth_cell_id
    AND simulated.method = r.method AND simulated.params = r.params
JOIN frontier AS s ON s.attempt_id = simulated.attempt_id
WHERE q.execution = 'real'
ORDER BY q.model, q.task_label, q.method, q.label, q.kv_policy, q.seed, q.cell_id, s.cell_id;
