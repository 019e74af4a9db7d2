-- One row per model, task and setting of a method: quality, depth and speed next to full depth's. Within a model and
-- task, settings shown to lose at most 1% of full depth's quality come first, the fastest at the top.
-- A speed-up is inside the noise floor unless its interval is beyond that of full depth timed against itself (A/A), and beyond 1.
-- promised_*: guarantee of a calibration of the same method at this threshold, on other documents.
WITH promised AS (
    SELECT r.model, r.task_label, r.conditions, r.method, r.params, r.kv_policy, c.threshold, c.delta, c.epsilon, c.consistency
    FROM calibrations AS c JOIN runs AS r USING (attempt_id)
    WHERE c.passed AND c.p_value IS NOT NULL
)
SELECT f.model, f.task_label AS task, f.conditions AS setting,
       f.method, f.params, f.kv_policy, f.execution, f.random_weights,
       f.metric, f.lower_is_better, f.value, f.ci_low, f.ci_high, f.full_value, f.delta, f.gain, p.delta_low, p.delta_high, p.is_paired, p.loss_high_percent,
       p.choosing_loss_high_percent, p.confirming_loss_high_percent, p.confirming_n, p.confirming_delta, p.confirming_delta_low,
       p.confirming_delta_high, b.is_static AS is_static_step, b.next_percent, b.confirmed_percent, b.choosing_speedup,
       b.confirming_speedup, b.confirming_speedup_low, b.confirming_speedup_high, q.caution,
       f.dtype, f.format_logprob_gap, f.format_choice_gap, f.format_match, f.token_match, f.mean_exit_layer, f.mean_blocks_run, f.blocks,
       f.is_full_depth,
       f.speedup, f.speedup_low, f.speedup_high, f.speed_status, f.aa_low, f.aa_high,
       NOT f.is_full_depth AND inside_noise(f.speedup_low, f.speedup_high, f.aa_low, f.aa_high) AS inside_noise_floor,
       f.speedup_per_token, f.tokens_per_request, f.full_tokens_per_request, f.is_other_length, f.speedup_decode,
       f.ideal_speedup_decode, f.realised_fraction, f.joules_per_token, f.full_joules_per_token, f.net_joules_per_token,
       f.energy_ratio, f.energy_ratio_low, f.energy_ratio_high,
       inside_noise(f.energy_ratio_low, f.energy_ratio_high, f.aa_energy_low, f.aa_energy_high) AS inside_energy_floor,
       f.ideal_speedup_bytes, f.n, f.timed_documents, f.timed_rounds,
       g.delta AS promised_delta, g.epsilon AS promised_epsilon, g.consistency AS promised_consistency,
       r.parameters, d.source = 'builtin' AS is_generated, f.limited, f.seed, r.setting_id, f.conforms, f.cell_id
FROM frontier AS f
JOIN runs AS r USING (attempt_id)
JOIN cell AS c ON c.cell_id = f.cell_id
JOIN dataset_artifact AS d USING (data_id)
LEFT JOIN paired AS p USING (attempt_id)
LEFT JOIN pareto AS b USING (attempt_id)
LEFT JOIN (
    SELECT attempt_id, string_agg(message, '; ' ORDER BY rule DESC) AS caution
    FROM qc WHERE rule IN ('near_floor', 'cut_by_length') GROUP BY attempt_id
) AS q ON q.attempt_id = f.attempt_id
LEFT JOIN promised AS g
    ON g.model = f.model AND g.task_label = f.task_label AND g.conditions = f.conditions AND g.method = f.method
    AND g.kv_policy IS NOT DISTINCT FROM f.kv_policy AND g.threshold = (f.params ->> 'threshold')::DOUBLE
    AND json_merge_patch(g.params, '{"threshold": null}') = json_merge_patch(f.params, '{"threshold": null}') AND f.execution = 'real'
QUALIFY row_number() OVER (PARTITION BY f.attempt_id ORDER BY g.delta, g.epsilon) = 1
ORDER BY f.model, task, setting, f.metric, f.execution, coalesce(p.loss_high_percent <= 1 OR f.is_full_depth, false) DESC,
         f.speedup DESC NULLS LAST, f.mean_blocks_run, f.method, f.params, f.cell_id;
