-- One row per model and task: how well full depth does, how early its answers are settled, and the setting that reads least
-- among those whose loss is shown to be at most 5 % of full depth's quality (paired by document).
-- agreement_mid: share of full depth's tokens that block L/2 predicts, from the largest probe; oracle_exit: the oracle's mean exit
-- layer, which no method can know beforehand. No setting is chosen if full depth is near its floor, where no loss can be seen.
WITH agreement AS (
    SELECT r.full_depth_attempt_id, s.agreement_mid
    FROM suitability AS s JOIN runs AS r USING (attempt_id)
    QUALIFY row_number() OVER (PARTITION BY r.full_depth_attempt_id ORDER BY s.n DESC, s.attempt_id DESC) = 1
),
oracle AS (
    SELECT model, task_label, conditions, min(mean_exit_layer) AS oracle_exit
    FROM frontier WHERE method = 'oracle' AND execution = 'real' GROUP BY ALL
),
near_floor AS (
    SELECT attempt_id FROM qc WHERE rule = 'near_floor' GROUP BY attempt_id
),
best AS (
    SELECT f.*, p.delta_low, p.delta_high
    FROM frontier AS f JOIN paired AS p USING (attempt_id)
    WHERE NOT f.is_full_depth AND f.execution = 'real' AND f.method NOT IN ('oracle', 'random')
        AND p.loss_high_percent <= 5 AND f.mean_blocks_run < f.blocks
    QUALIFY row_number() OVER (
        PARTITION BY f.model, f.task_label, f.conditions, f.setting_id
        ORDER BY f.ideal_speedup_bytes DESC NULLS LAST, f.mean_blocks_run, f.cell_id
    ) = 1
)
SELECT
    f.model, f.task_label AS task, f.conditions AS setting, d.source = 'builtin' AS is_generated, f.metric, f.n, f.lower_is_better, f.value AS full_value, f.ci_low AS full_low, f.ci_high AS full_high, f.blocks,
    a.agreement_mid, o.oracle_exit,
    b.method, b.params, b.kv_policy, b.value, b.delta, b.delta_low, b.delta_high, b.mean_exit_layer, b.ideal_speedup_bytes,
    near_floor.attempt_id IS NOT NULL AS is_near_floor, b.speedup, b.speedup_low, b.speedup_high, b.timed_documents, coalesce(b.conforms, f.conforms) AS conforms, f.cell_id
FROM frontier AS f
JOIN cell AS c ON c.cell_id = f.cell_id
JOIN dataset_artifact AS d USING (data_id)
LEFT JOIN agreement AS a ON a.full_depth_attempt_id = f.attempt_id
LEFT JOIN oracle AS o ON o.model = f.model AND o.task_label = f.task_label AND o.conditions = f.conditions
LEFT JOIN near_floor ON near_floor.attempt_id = f.attempt_id
LEFT JOIN best AS b ON near_floor.attempt_id IS NULL AND b.model = f.model AND b.task_label = f.task_label AND b.conditions = f.conditions AND b.metric = f.metric
    AND b.setting_id = f.setting_id
WHERE f.is_full_depth AND f.execution = 'real'
QUALIFY row_number() OVER (PARTITION BY f.model, f.task_label, f.conditions, f.metric ORDER BY b.cell_id IS NULL, f.n DESC, f.cell_id) = 1
ORDER BY  -- models of which only full depth's quality is known come last
    bool_or(a.agreement_mid IS NOT NULL OR o.oracle_exit IS NOT NULL OR b.cell_id IS NOT NULL) OVER (PARTITION BY f.model) DESC,
    f.model, task, setting, f.metric, f.cell_id;
