-- Adaptive pruning as published and as intended, each against fixed pruning, token by token. One row per head and
-- block.
-- Intervals: 95 %, of ratios of sums over documents (linearised).
WITH
-- continues in ../prune/shared/prune_gates.sql
asked AS (
    SELECT attempt_id, cell_id, task_label AS task, model, setting, head, min_exit, mean_exit_layer, blocks,
           full_depth_attempt_id
    FROM gates WHERE method = 'calm-softmax' AND head IN ('pruned-fixed', 'pruned-adaptive', 'pruned-adaptive-code')
    QUALIFY count(DISTINCT head) OVER (PARTITION BY task_label, model, setting, full_depth_attempt_id) > 1
),
vocabulary AS (  -- full depth reads the whole head once per token
    SELECT attempt_id AS full_depth_attempt_id, max(head_rows) AS vocabulary
    FROM token_exit WHERE attempt_id IN (SELECT full_depth_attempt_id FROM asked) GROUP BY ALL
),
trace AS (
    SELECT attempt_id, doc_key, position, token_id, exit_layer, head_rows
    FROM token_exit WHERE choice IS NULL AND attempt_id IN (SELECT attempt_id FROM asked)
),
documents AS (
    SELECT a.attempt_id, t.doc_key, count(*) AS tokens, sum(t.head_rows - v.vocabulary) AS later_rows,
           sum(CAST(coalesce(t.token_id = f.token_id AND t.exit_layer = f.exit_layer AND t.head_rows = f.head_rows,
                             false) AS INTEGER)) AS same
    FROM asked AS a
    JOIN vocabulary AS v USING (full_depth_attempt_id)
    JOIN asked AS fixed
        ON fixed.task = a.task AND fixed.model = a.model AND fixed.setting = a.setting
        AND fixed.full_depth_attempt_id = a.full_depth_attempt_id AND fixed.min_exit = a.min_exit
        AND fixed.head = 'pruned-fixed'
    JOIN trace AS t ON t.attempt_id = a.attempt_id
    LEFT JOIN trace AS f
        ON f.attempt_id = fixed.attempt_id AND f.doc_key = t.doc_key AND f.position = t.position
    GROUP BY ALL
),
totals AS (
    SELECT
        attempt_id, count(*) AS n, sum(tokens) AS tokens, sum(later_rows) / sum(tokens) AS later_rows,
        t_quantile(count(*)) * ratio_error(later_rows, tokens) AS later_rows_half, sum(same) / sum(tokens) AS same,
        half_width(same, tokens) AS same_half
    FROM documents GROUP BY ALL
)
SELECT a.task, a.model, a.setting, a.head, a.min_exit, t.later_rows, t.later_rows - t.later_rows_half AS later_rows_low,
       t.later_rows + t.later_rows_half AS later_rows_high, t.same, CASE WHEN t.same_half IS NOT NULL THEN greatest(0, t.same - t.same_half) END AS same_low,
       CASE WHEN t.same_half IS NOT NULL THEN least(1, t.same + t.same_half) END AS same_high, a.mean_exit_layer, a.blocks, CAST(t.tokens AS BIGINT) AS tokens, t.n
FROM asked AS a JOIN totals AS t USING (attempt_id)
ORDER BY a.task, a.model, a.setting, a.head, a.min_exit, a.cell_id;
