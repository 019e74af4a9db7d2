-- Blocks that the contrastive gate (JSD) saves over the softmax gate, by first gated block, and the mean of that gain
-- over all settings, over those where neither output has collapsed (below half of full depth's value), and over those
-- where the contrastive gate keeps 95 % of the baseline's value. Intervals: 95 %, linearised over documents, which all
-- settings share.
WITH
-- continues in ../prune/shared/prune_gates.sql
asked AS (
    SELECT * RENAME (task AS task_name, task_label AS task) FROM gates
    WHERE value IS NOT NULL AND method IN ('contrastive-jsd', 'calm-softmax') AND head = 'full'
),
pairs AS (
    SELECT b.task, b.model, b.setting, b.min_exit, b.metric, b.lower_is_better, b.blocks, b.full_value, b.n,
           b.attempt_id AS baseline_id, c.attempt_id AS contrast_id,
           b.value AS baseline, b.ci_low AS baseline_low, b.ci_high AS baseline_high,
           c.value AS contrast, c.ci_low AS contrast_low, c.ci_high AS contrast_high,
           b.mean_exit_layer AS baseline_exit, c.mean_exit_layer AS contrast_exit,
           b.mean_exit_layer - c.mean_exit_layer AS gain,
           least(share_kept(b.value, b.full_value, b.lower_is_better), share_kept(c.value, b.full_value, b.lower_is_better)) < 0.5 AS collapsed,
           NOT collapsed AND share_kept(c.value, b.value, b.lower_is_better) >= 0.95 AS kept
    FROM asked AS b JOIN asked AS c USING (task, model, setting, full_depth_attempt_id, min_exit)
    WHERE b.method = 'calm-softmax' AND c.method = 'contrastive-jsd'
),
documents AS (
    SELECT attempt_id, doc_key, count(*) AS tokens, sum(exit_layer) AS depth
    FROM token_exit WHERE attempt_id IN (SELECT attempt_id FROM asked) GROUP BY ALL
),
totals AS (SELECT attempt_id, sum(tokens) AS tokens, sum(depth) / sum(tokens) AS depth FROM documents GROUP BY ALL),
influences AS (  -- of one document on a mean exit layer
    SELECT d.attempt_id, d.doc_key, (d.depth - t.depth * d.tokens) / t.tokens AS influence
    FROM documents AS d JOIN totals AS t USING (attempt_id)
),
gains AS (
    SELECT p.task, p.model, p.setting, p.min_exit, p.gain, p.collapsed, p.kept, b.doc_key,
           b.influence - c.influence AS influence
    FROM pairs AS p
    JOIN influences AS b ON b.attempt_id = p.baseline_id
    JOIN influences AS c ON c.attempt_id = p.contrast_id AND c.doc_key = b.doc_key
),
half_widths AS (
    SELECT task, model, setting, min_exit,
           t_quantile(count(*)) * sqrt(count(*) / nullif(count(*) - 1, 0) * sum(influence ** 2)) AS half
    FROM gains GROUP BY ALL
),
mean_influences AS (
    SELECT task, model, setting, doc_key, avg(influence) AS every,
           avg(influence) FILTER (NOT collapsed) AS alive, avg(influence) FILTER (kept) AS kept
    FROM gains GROUP BY ALL
),
mean_half_widths AS (
    SELECT task, model, setting,
           t_quantile(count(*)) * sqrt(count(*) / nullif(count(*) - 1, 0) * sum(every ** 2)) AS every,
           t_quantile(count(*)) * sqrt(count(*) / nullif(count(*) - 1, 0) * sum(alive ** 2)) AS alive,
           t_quantile(count(*)) * sqrt(count(*) / nullif(count(*) - 1, 0) * sum(kept ** 2)) AS kept
    FROM mean_influences GROUP BY ALL
),
means AS (
    SELECT task, model, setting, count(*) AS settings, avg(gain) AS mean_all,
           count(*) FILTER (NOT collapsed) AS settings_alive, avg(gain) FILTER (NOT collapsed) AS mean_alive,
           count(*) FILTER (kept) AS settings_kept, avg(gain) FILTER (kept) AS mean_kept
    FROM pairs GROUP BY ALL
)
SELECT p.* EXCLUDE (baseline_id, contrast_id), p.gain - w.half AS gain_low, p.gain + w.half AS gain_high,
       m.settings, m.mean_all, m.mean_all - h.every AS mean_all_low, m.mean_all + h.every AS mean_all_high,
       m.settings_alive, m.mean_alive, m.mean_alive - h.alive AS mean_alive_low, m.mean_alive + h.alive AS mean_alive_high,
       m.settings_kept, m.mean_kept, m.mean_kept - h.kept AS mean_kept_low, m.mean_kept + h.kept AS mean_kept_high
FROM pairs AS p
JOIN means AS m USING (task, model, setting)
LEFT JOIN half_widths AS w USING (task, model, setting, min_exit)
LEFT JOIN mean_half_widths AS h USING (task, model, setting)
ORDER BY p.task, p.model, p.setting, p.min_exit;
