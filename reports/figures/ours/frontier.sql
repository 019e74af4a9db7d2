-- Quality, as a share of full depth's (share_kept), against blocks run (depth) and measured speed-up: one row per
-- setting of a method. A speed-up is inside the noise floor unless its
-- interval is beyond that of full depth timed against itself (A/A), and beyond 1. Recommended: chosen and confirmed at an allowed loss
-- of 1 % (pareto). Tasks where full depth scores 0 are excluded.
WITH ours AS (
    SELECT
        f.*, task_label || if(count(DISTINCT f.metric) OVER (PARTITION BY task_label) > 1, ' · ' || f.metric, '') AS name,
        coalesce(NOT p.is_static AND p.confirmed_percent <= 1 AND coalesce(p.next_percent > 1, true), false) AS is_recommended
    FROM frontier AS f LEFT JOIN (
        SELECT attempt_id, is_static, confirmed_percent, next_percent FROM pareto
    ) AS p USING (attempt_id)
    WHERE NOT random_weights AND value IS NOT NULL AND full_value > 0
)
SELECT name AS task, model, conditions AS setting,
       method, params, kv_policy, execution, metric,
       share_kept(value, full_value, lower_is_better) AS quality,
       share_kept(if(lower_is_better, ci_high, ci_low), full_value, lower_is_better) AS quality_low,
       share_kept(if(lower_is_better, ci_low, ci_high), full_value, lower_is_better) AS quality_high,
       mean_blocks_run / blocks AS depth, speedup, speedup_low, speedup_high, speed_status, aa_low, aa_high,
       NOT is_full_depth AND inside_noise(speedup_low, speedup_high, aa_low, aa_high) AS inside_noise_floor,
       is_full_depth, method <> 'oracle' AS attainable, is_recommended, n, speedup_per_token, tokens_per_request, full_tokens_per_request,
       is_other_length, timed_documents, timed_rounds, cell_id
FROM ours
ORDER BY task, setting, metric, model, method, execution, depth, params, cell_id;
