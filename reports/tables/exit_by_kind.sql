-- Depth by kind of token, of words whose kind is known: where predictions settle (probes) and where methods emit (real
-- decodes), with 95 % intervals clustered by document.
SELECT r.model, r.task_label AS task, r.kind, r.method, r.params, r.kv_policy, r.conforms, k.token_kind, k.n,
       round(mean_first_match, 6) AS mean_first_match, round(first_match_half, 6) AS first_match_half,
       round(mean_stable_from, 6) AS mean_stable_from, round(stable_from_half, 6) AS stable_from_half,
       round(mean_exit_layer, 6) AS mean_exit_layer, round(exit_layer_half, 6) AS exit_layer_half,
       CASE WHEN r.kind <> 'probe' THEN round(share_equal_full, 6) END AS share_equal_full,
       CASE WHEN r.kind <> 'probe' THEN round(equal_full_half, 6) END AS equal_full_half
FROM exit_by_kind AS k
JOIN runs AS r USING (attempt_id)
WHERE NOT r.random_weights AND r.execution = 'real'
ORDER BY r.model, task, r.kind, r.method, r.params, r.kv_policy, k.token_kind, r.cell_id;
