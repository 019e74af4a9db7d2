-- Agreement: How far do replays of a probe deviate from real decodes of the same method?
-- A replay (simulated) does not model that an early exit changes later keys, values and tokens. One row per method that
-- has both, with the same full depth: real minus simulated. Trust replays only for quantities whose difference is
-- small.
SELECT
    q.model, q.task_label, q.method, q.label, q.kv_policy, q.seed, q.mean_exit_layer,
    s.mean_exit_layer AS simulated_exit_layer, q.mean_exit_layer - s.mean_exit_layer AS exit_layer_off, q.token_match,
    s.token_match AS simulated_match, q.token_match - s.token_match AS match_off
FROM frontier AS q
JOIN frontier AS s
    ON s.execution = 'simulated' AND s.full_depth_cell_id = q.full_depth_cell_id AND s.method = q.method
    AND s.params = q.params
WHERE q.execution = 'real'
ORDER BY q.model, q.task_label, q.method, q.label, q.kv_policy, q.seed, q.cell_id, s.cell_id;
