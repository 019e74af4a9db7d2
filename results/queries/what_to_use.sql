-- Cost and speed: What should be used on each task, and is it better than a static depth?
-- For each task, among the runs of the most documents, the fastest setting that is shown to be faster than full depth of
-- its own model and to lose at most $loss percent (the view pareto: the bound is of the paired interval, not of the
-- point). Where none is, loss_is_shown is false: the one that is shown to lose least, 20 percent at most. Where no method
-- was timed: the one that runs fewest blocks of those shown to lose as little. Random exits, oracles and static depths are
-- no candidates; candidates: settings of others. static_block: the fastest static depth of the same model within the same
-- bound (all blocks where there is none). verdict compares the two: faster or slower where their 95% intervals lie apart,
-- else not to be told apart; nothing: no setting is shown to lose as little. random_is_as_good: random exits that run no
-- more blocks lose no more either; NULL where none were run.
-- $loss = 1: percent of full depth's quality that may be lost
-- $suite = null: only runs that this suite asked for; null for all
WITH points AS (
    SELECT
        f.*, r.setting_id, p.delta_low, p.delta_high, p.loss_high_percent, step.is_static AS is_static_step,
        NOT f.is_full_depth AND f.method NOT IN ('static', 'random', 'oracle') AS is_candidate,
        coalesce(p.loss_high_percent <= $loss, false) AS loss_is_shown,
        bool_or(is_candidate AND f.speedup IS NOT NULL) OVER (PARTITION BY r.setting_id) AS is_timed
    FROM frontier AS f
    JOIN runs AS r USING (attempt_id)
    LEFT JOIN paired AS p USING (attempt_id)
    LEFT JOIN pareto AS step USING (attempt_id)
    WHERE f.execution = 'real' AND NOT f.random_weights AND f.conforms IS DISTINCT FROM false AND f.delta IS NOT NULL
        AND ($suite::VARCHAR IS NULL OR f.suite = $suite::VARCHAR)
    QUALIFY f.n = max(f.n) OVER (PARTITION BY f.task_label)
),
tasks AS (
    SELECT
        task_label, any_value(metric ORDER BY metric) AS metric, max(n) AS n, count(*) FILTER (is_candidate) AS candidates
    FROM points GROUP BY task_label
),
best AS (
    SELECT * FROM points
    WHERE is_candidate AND CASE
        WHEN is_timed THEN NOT is_static_step AND loss_high_percent <= greatest($loss, 20)
        ELSE loss_is_shown AND mean_blocks_run < blocks
    END
    QUALIFY row_number() OVER (
        PARTITION BY task_label
        ORDER BY
            loss_is_shown DESC, is_timed DESC, CASE WHEN loss_is_shown THEN speedup END DESC,
            CASE WHEN NOT is_timed THEN mean_blocks_run / blocks END, loss_high_percent, cell_id
    ) = 1
),
static AS (
    SELECT b.cell_id, s.params ->> 'exit_layer' AS block, s.speedup, s.speedup_low, s.speedup_high, s.delta
    FROM best AS b JOIN points AS s ON s.setting_id = b.setting_id AND s.is_static_step
        AND s.loss_high_percent <= greatest($loss, b.loss_high_percent)
    QUALIFY row_number() OVER (PARTITION BY b.cell_id ORDER BY s.speedup DESC, s.cell_id) = 1
),
random_exits AS (
    SELECT b.cell_id, bool_or(
            r.mean_blocks_run <= b.mean_blocks_run AND least(r.delta, 0) >= least(b.delta, 0)
        ) AS is_as_good
    FROM best AS b JOIN points AS r ON r.setting_id = b.setting_id AND r.method = 'random'
    GROUP BY b.cell_id
)
SELECT
    t.task_label, t.metric, t.n, t.candidates, b.model, b.method, b.label, b.kv_policy, b.value, b.full_value, b.delta,
    b.delta_low, b.delta_high, b.loss_high_percent, b.loss_is_shown,
    b.mean_blocks_run, b.blocks, b.speedup, b.speedup_low, b.speedup_high, b.ideal_speedup_bytes,
    CASE WHEN b.cell_id IS NOT NULL THEN coalesce(s.block::INTEGER, b.blocks) END AS static_block,
    coalesce(s.speedup, 1.0) AS static_speedup, s.delta AS static_delta,
    CASE
        WHEN b.cell_id IS NULL THEN 'nothing'
        WHEN b.speedup IS NULL THEN 'not timed'
        WHEN s.cell_id IS NULL OR b.speedup_low > s.speedup_high THEN 'faster'
        WHEN b.speedup_high < s.speedup_low THEN 'slower'
        ELSE 'not to be told apart'
    END AS verdict,
    r.is_as_good AS random_is_as_good, b.params
FROM tasks AS t
LEFT JOIN best AS b USING (task_label)
LEFT JOIN static AS s ON s.cell_id = b.cell_id
LEFT JOIN random_exits AS r ON r.cell_id = b.cell_id
ORDER BY t.task_label;
