-- Quality, as a share of full depth's (share_kept), against blocks run (depth) and measured speed-up: one row per
-- setting of a method, and one per published value that has both. A speed-up is inside the noise floor when its
-- interval overlaps that of full depth timed against itself (A/A). Recommended: chosen and confirmed at an allowed loss
-- of 1 % (pareto). Tasks where full depth scores 0 are excluded.
WITH ours AS (
    SELECT
        f.*, task_label || if(count(DISTINCT f.metric) OVER (PARTITION BY task_label) > 1, ' · ' || f.metric, '') AS name,
        coalesce(NOT p.is_static AND p.confirmed_percent <= 1 AND coalesce(p.next_percent > 1, true), false) AS is_recommended
    FROM frontier AS f LEFT JOIN (
        SELECT attempt_id, is_static, confirmed_percent, next_percent FROM pareto
    ) AS p USING (attempt_id)
    WHERE NOT random_weights AND value IS NOT NULL AND full_value > 0
),
published_full AS (
    SELECT source, model, dataset, our_metric, max(value) AS value
    FROM published WHERE method = 'no early exit' GROUP BY ALL
),
theirs AS (
    -- Quality and depth of a setting are printed in two parts of a figure. Both models are T5-large: 24 blocks.
    -- PRUNE's list of depths of fixed pruning in 11a is shifted (see `note`): its last two entries are excluded.
    SELECT q.our_task AS task, q.our_metric AS metric, q.source || ', ' || q.figure_or_table AS model, q.method,
           q.setting, q.value / f.value AS quality, d.value / 24 AS depth
    FROM published AS q
    JOIN published AS d
        ON d.source = q.source AND d.model = q.model AND d.dataset = q.dataset AND d.split = q.split
        AND d.method = q.method AND d.setting = q.setting
        AND regexp_replace(d.figure_or_table, '[ab]$', '') = regexp_replace(q.figure_or_table, '[ab]$', '')
    JOIN published_full AS f
        ON f.source = q.source AND f.model = q.model AND f.dataset = q.dataset AND f.our_metric = q.our_metric
    WHERE d.our_metric = 'mean_exit_layer' AND q.our_metric <> 'mean_exit_layer' AND q.model ILIKE '%t5-large%'
          AND NOT (d.figure_or_table = 'PRUNE Fig 11a' AND d.method = 'JSD + fixed pruning'
                   AND d.setting IN ('min exit layer 6', 'min exit layer 3'))
)
SELECT 'ours' AS origin, name AS task, model, conditions AS setting,
       method, params, kv_policy, execution, metric,
       share_kept(value, full_value, lower_is_better) AS quality,
       share_kept(if(lower_is_better, ci_high, ci_low), full_value, lower_is_better) AS quality_low,
       share_kept(if(lower_is_better, ci_low, ci_high), full_value, lower_is_better) AS quality_high,
       mean_blocks_run / blocks AS depth, speedup, speedup_low, speedup_high, speed_status, aa_low, aa_high,
       coalesce(NOT is_full_depth AND speedup_low <= aa_high AND speedup_high >= aa_low, false) AS inside_noise_floor,
       is_full_depth, method <> 'oracle' AS attainable, is_recommended, n, speedup_per_token, tokens_per_request, full_tokens_per_request,
       is_other_length, timed_documents, timed_rounds, cell_id
FROM ours
UNION ALL
SELECT 'published', o.name, t.model, o.setting, t.method, json_object('setting', t.setting), NULL, 'published', t.metric,
       t.quality, NULL, NULL, t.depth, NULL, NULL, NULL, NULL, NULL, NULL, false, false, true, false, NULL, NULL,
       NULL, NULL, NULL, NULL, NULL, NULL
FROM theirs AS t
JOIN (
    SELECT DISTINCT task, name, metric, conditions AS setting FROM ours
) AS o USING (task, metric)
ORDER BY task, setting, metric, origin, model, method, execution, depth, params, cell_id;
