-- Agreement: How does the KV policy change results, all else equal?
-- Each run next to the run of the same method, parameters and seed under the policy $reference. The columns are
-- differences: exit layer, blocks run, tokens equal to full depth's, score and speed-up.
-- $reference = state-copy: KV policy to compare with
WITH points AS (
    SELECT *, json_merge_patch(params, '{"kv_policy": null}')::VARCHAR AS method_params
    FROM frontier WHERE execution = 'real' AND NOT is_full_depth
)
SELECT
    p.model, p.task_label, p.method, p.label, p.kv_policy, p.seed, p.mean_exit_layer, p.mean_blocks_run, p.token_match, p.metric, p.value,
    p.speedup, p.mean_exit_layer - s.mean_exit_layer AS exit_layer_more,
    p.mean_blocks_run - s.mean_blocks_run AS blocks_run_more, p.token_match - s.token_match AS match_more,
    p.value - s.value AS value_more, p.speedup - s.speedup AS speedup_more
FROM points AS p
JOIN points AS s
    ON s.setting_id = p.setting_id AND s.method = p.method AND s.method_params = p.method_params
    AND s.kv_policy = $reference
WHERE p.kv_policy <> $reference
ORDER BY p.model, p.task_label, p.method, p.label, p.kv_policy, p.seed, p.cell_id, s.cell_id;
