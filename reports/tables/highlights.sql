-- Ten timed settings on one model and task: where most methods were timed; of those where Δ has an interval, and quality
-- differs most.
-- Of each method the fastest that is shown to lose at most 1 % of full depth's quality, as the view pareto has it; of a
-- method of which none is, the one that loses least.
WITH timed AS (
    SELECT
        f.*, f.conditions AS setting, p.delta_low, p.delta_high,
        printf(
            '%s, a model of %.1f million parameters', CASE WHEN d.source = 'builtin' THEN 'generated' ELSE 'real' END, r.parameters / 1e6
        ) AS data,
        coalesce(p.loss_high_percent <= 1, f.is_full_depth) AS is_close, f.speedup_low > greatest(1, coalesce(f.aa_high, 1)) AS is_faster
    FROM frontier AS f JOIN runs AS r USING (attempt_id) JOIN cell AS c ON c.cell_id = f.cell_id
        JOIN dataset_artifact AS d USING (data_id) LEFT JOIN paired AS p USING (attempt_id)
    WHERE f.execution = 'real' AND NOT f.random_weights AND NOT f.limited AND f.speedup IS NOT NULL
),
chosen AS (
    SELECT model, task_label, setting
    FROM timed
    GROUP BY ALL
    ORDER BY count(DISTINCT method) DESC, count(delta_low) > 0 DESC, stddev(value) DESC, model, task_label, setting
    LIMIT 1
),
shown AS (
    SELECT * FROM timed SEMI JOIN chosen USING (model, task_label, setting)
    QUALIFY row_number() OVER (
        PARTITION BY method
        ORDER BY is_close DESC, CASE WHEN is_close THEN is_faster END DESC, CASE WHEN is_close THEN speedup END DESC, delta DESC, cell_id
    ) = 1
    ORDER BY is_full_depth DESC, method = 'static' DESC, speedup DESC, cell_id
    LIMIT 10
)
SELECT
    s.model, s.task_label AS task, s.data, s.setting, coalesce(s.timing_gpu, s.timing_cpu) AS machine, s.blocks, s.method, s.params, s.kv_policy,
    s.execution, s.metric, s.value, s.ci_low, s.ci_high, s.full_value, s.delta,
    s.delta_low, s.delta_high,
    s.token_match, s.mean_exit_layer, s.mean_blocks_run, s.is_full_depth, s.speedup, s.speedup_low, s.speedup_high,
    coalesce(NOT s.is_full_depth AND s.speedup_low <= s.aa_high AND s.speedup_high >= s.aa_low, false) AS inside_noise_floor,
    s.is_other_length, s.n, s.timed_documents, s.timed_rounds, s.conforms, s.cell_id
FROM shown AS s
ORDER BY s.is_full_depth DESC, s.speedup DESC, s.method, s.params, s.cell_id;
