-- Cost and speed: What should be used on each task, and is it better than a static depth?
-- For each task the fastest timed setting that loses next to nothing to full depth of its own model, among the runs of
-- the most documents (where none of these was timed: the one that saves most work). Random exits, oracles and static
-- depths are no candidates; candidates: settings of others. delta_low to delta_high: 95% interval of the loss, paired by document; NULL for metrics of a
-- whole corpus. static_block: the fastest timed static depth of the same model that loses no more (all blocks where there
-- is none). verdict compares the two: faster or slower where their 95% intervals lie apart, else not to be told apart;
-- noise: it is not even told apart from full depth timed against itself; nothing: no setting loses as little.
-- random_is_as_good: random exits that run no more blocks lose no more either; NULL where none were run.
-- $loss = 1: points of the task's headline metric
-- $suite = null: only runs that this suite asked for; null for all
WITH points AS (
    SELECT f.*, r.setting_id, r.full_depth_attempt_id
    FROM frontier AS f JOIN runs AS r USING (attempt_id)
    WHERE f.execution = 'real' AND NOT f.random_weights AND f.conforms IS DISTINCT FROM false AND f.delta IS NOT NULL
        AND ($suite::VARCHAR IS NULL OR f.suite = $suite::VARCHAR)
    QUALIFY f.n = max(f.n) OVER (PARTITION BY f.task_label)
),
tasks AS (
    SELECT
        task_label, any_value(metric ORDER BY metric) AS metric, max(n) AS n,
        count(*) FILTER (NOT is_full_depth AND method NOT IN ('static', 'random', 'oracle')) AS candidates
    FROM points GROUP BY task_label
),
best AS (
    SELECT * FROM points
    WHERE NOT is_full_depth AND method NOT IN ('static', 'random', 'oracle') AND delta >= -$loss
    QUALIFY row_number() OVER (
        PARTITION BY task_label ORDER BY speedup DESC NULLS LAST, ideal_speedup_bytes DESC, delta DESC, cell_id
    ) = 1
),
static AS (
    SELECT b.cell_id, s.params ->> 'exit_layer' AS block, s.speedup, s.speedup_low, s.speedup_high, s.delta
    FROM best AS b JOIN points AS s ON s.setting_id = b.setting_id AND s.method = 'static'
        AND least(s.delta, 0) >= least(b.delta, 0)
    WHERE s.speedup IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY b.cell_id ORDER BY s.speedup DESC, s.cell_id) = 1
),
random_exits AS (
    SELECT b.cell_id, bool_or(
            r.mean_blocks_run <= b.mean_blocks_run AND least(r.delta, 0) >= least(b.delta, 0)
        ) AS is_as_good
    FROM best AS b JOIN points AS r ON r.setting_id = b.setting_id AND r.method = 'random'
    GROUP BY b.cell_id
),
paired AS (
    SELECT
        b.cell_id, avg((a.scores ->> b.metric)::DOUBLE - (f.scores ->> b.metric)::DOUBLE) AS delta,
        mean_half_width((a.scores ->> b.metric)::DOUBLE - (f.scores ->> b.metric)::DOUBLE) AS half_width
    FROM best AS b
    JOIN answers AS a ON a.attempt_id = b.attempt_id
    JOIN answers AS f ON f.attempt_id = b.full_depth_attempt_id AND f.doc_key = a.doc_key
    GROUP BY b.cell_id
)
SELECT
    t.task_label, t.metric, t.n, t.candidates, b.model, b.method, b.params, b.kv_policy, b.value, b.full_value, b.delta,
    CASE WHEN abs(p.delta - b.delta) < 1e-6 THEN b.delta - p.half_width END AS delta_low,
    CASE WHEN abs(p.delta - b.delta) < 1e-6 THEN b.delta + p.half_width END AS delta_high,
    b.mean_blocks_run, b.blocks, b.speedup, b.speedup_low, b.speedup_high, b.ideal_speedup_bytes,
    CASE WHEN b.cell_id IS NOT NULL THEN coalesce(s.block::INTEGER, b.blocks) END AS static_block,
    coalesce(s.speedup, 1.0) AS static_speedup, s.delta AS static_delta,
    CASE
        WHEN b.cell_id IS NULL THEN 'nothing'
        WHEN b.speedup IS NULL THEN 'not timed'
        WHEN b.speedup_low <= coalesce(b.aa_high, 1) THEN 'noise'
        WHEN s.cell_id IS NULL OR b.speedup_low > s.speedup_high THEN 'faster'
        WHEN b.speedup_high < s.speedup_low THEN 'slower'
        ELSE 'not to be told apart'
    END AS verdict,
    r.is_as_good AS random_is_as_good
FROM tasks AS t
LEFT JOIN best AS b USING (task_label)
LEFT JOIN static AS s ON s.cell_id = b.cell_id
LEFT JOIN random_exits AS r ON r.cell_id = b.cell_id
LEFT JOIN paired AS p ON p.cell_id = b.cell_id
ORDER BY t.task_label;
