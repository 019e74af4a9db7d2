-- Ten timed settings on one model and task: the one with the most timed methods, on whole data rather than subsets; of
-- several, one where Δ has an interval and quality differs most.
-- Of each method, the fastest setting whose loss the choosing documents bound by 5 % of full depth's quality; if a
-- method has none, the setting that loses least on them. Δ and speed-ups are from the other documents.
WITH timed AS (
    SELECT
        f.* EXCLUDE (speedup, speedup_low, speedup_high), f.conditions AS setting,
        p.confirming_delta, p.confirming_delta_low, p.confirming_delta_high, p.confirming_n,
        printf(
            '%s, a model of %.1f million parameters', CASE WHEN d.source = 'builtin' THEN 'generated' ELSE 'real' END, r.parameters / 1e6
        ) || CASE WHEN f.limited THEN ', a part of the documents' ELSE '' END AS data,
        coalesce(p.choosing_loss_high_percent <= 5, f.is_full_depth) AS is_close, p.choosing_loss_high_percent,
        CASE WHEN f.is_full_depth THEN 1.0 ELSE a.value END AS choosing_speedup, CASE WHEN f.is_full_depth THEN 1.0 ELSE b.value END AS speedup,
        CASE WHEN f.is_full_depth THEN 1.0 ELSE b.ci_low END AS speedup_low, CASE WHEN f.is_full_depth THEN 1.0 ELSE b.ci_high END AS speedup_high
    FROM frontier AS f JOIN runs AS r USING (attempt_id) JOIN cell AS c ON c.cell_id = f.cell_id
        JOIN dataset_artifact AS d USING (data_id) LEFT JOIN paired AS p USING (attempt_id)
        LEFT JOIN metric AS a ON a.attempt_id = f.timing_attempt_id AND a.metric = 'speedup_choosing'
        LEFT JOIN metric AS b ON b.attempt_id = f.timing_attempt_id AND b.metric = 'speedup_confirming'
    WHERE f.execution = 'real' AND NOT f.random_weights AND f.speedup IS NOT NULL
        AND (f.is_full_depth OR is_measurable(b.ci_low, b.ci_high))
),
chosen AS (
    SELECT model, task_label, setting, limited
    FROM timed
    GROUP BY ALL
    ORDER BY limited, count(DISTINCT method) DESC, count(confirming_delta_low) > 0 DESC, stddev(value) DESC, model, task_label, setting
    LIMIT 1
),
shown AS (
    SELECT * FROM timed SEMI JOIN chosen USING (model, task_label, setting, limited)
    QUALIFY row_number() OVER (
        PARTITION BY method
        ORDER BY
            is_close DESC, CASE WHEN is_close THEN choosing_speedup END DESC NULLS LAST, choosing_loss_high_percent NULLS LAST, cell_id
    ) = 1
    ORDER BY is_full_depth DESC, method = 'static' DESC, speedup DESC, cell_id
    LIMIT 10
)
SELECT
    s.model, s.task_label AS task, s.data, s.setting, coalesce(s.timing_gpu, s.timing_cpu) AS machine, s.blocks, s.method, s.params, s.kv_policy,
    s.execution, s.metric, s.value, s.ci_low, s.ci_high, s.full_value, s.confirming_delta AS delta,
    s.confirming_delta_low AS delta_low, s.confirming_delta_high AS delta_high, s.lower_is_better, s.confirming_n,
    s.dtype, s.format_logprob_gap, s.format_choice_gap, s.format_match,
    s.token_match, s.mean_exit_layer, s.mean_blocks_run, s.is_full_depth, s.speedup, s.speedup_low, s.speedup_high, s.speed_status,
    NOT s.is_full_depth AND inside_noise(s.speedup_low, s.speedup_high, s.aa_low, s.aa_high) AS inside_noise_floor,
    s.is_other_length, s.n, s.timed_documents, s.timed_rounds, s.conforms, s.cell_id
FROM shown AS s
ORDER BY s.is_full_depth DESC, s.speedup DESC, s.method, s.params, s.cell_id;
