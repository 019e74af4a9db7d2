-- Rows of the LM head that a pruned read-out saves, with and without the full head at the start layer, which every
-- token reads and the published counters omit. A row costs 2 d_model FLOPs in both, so ratios of rows are ratios of
-- FLOPs. One row per pruned head and first gated block. Intervals: 95 %, of log ratios of sums over documents
-- (linearised).
WITH
-- continues in ../prune/shared/prune_gates.sql
asked AS (
    SELECT attempt_id, task_label AS task, model, setting, head, min_exit, mean_exit_layer, blocks, full_depth_attempt_id
    FROM gates WHERE method = 'calm-softmax' AND head IN ('full', 'pruned-fixed', 'pruned-decaying-idsorted')
),
vocabulary AS (  -- full depth reads the whole head once per token
    SELECT attempt_id AS full_depth_attempt_id, max(head_rows) AS vocabulary FROM token_exit GROUP BY ALL
),
documents AS (
    SELECT attempt_id, doc_key, count(*) AS tokens, sum(head_rows) AS rows FROM token_exit
    WHERE choice IS NULL AND head_rows IS NOT NULL GROUP BY ALL
),
pairs AS (  -- rows per token of both read-outs, document by document
    SELECT p.*, v.vocabulary, d.doc_key, d.tokens, d.rows, d.rows - v.vocabulary * d.tokens AS later_rows,
           o.tokens AS full_tokens, o.rows AS full_rows
    FROM asked AS p
    JOIN vocabulary AS v USING (full_depth_attempt_id)
    JOIN asked AS f
        ON f.task = p.task AND f.model = p.model AND f.setting = p.setting AND f.min_exit = p.min_exit
        AND f.full_depth_attempt_id = p.full_depth_attempt_id AND f.head = 'full'
    JOIN documents AS d ON d.attempt_id = p.attempt_id
    JOIN documents AS o ON o.attempt_id = f.attempt_id AND o.doc_key = d.doc_key
    WHERE p.head <> 'full'
),
totals AS (
    SELECT attempt_id, count(*) AS n, sum(tokens) AS tokens, sum(rows) AS rows, sum(later_rows) AS later_rows,
           sum(full_tokens) AS full_tokens, sum(full_rows) AS full_rows
    FROM pairs GROUP BY ALL
),
errors AS (  -- influence of a document on the log of rows per token, full minus pruned
    SELECT p.attempt_id,
           t_quantile(max(t.n)) * sqrt(max(t.n) / nullif(max(t.n) - 1, 0) * sum(
               (p.full_rows / t.full_rows - p.full_tokens / t.full_tokens - p.rows / t.rows + p.tokens / t.tokens) ** 2
           )) AS counted_half,
           t_quantile(max(t.n)) * sqrt(max(t.n) / nullif(max(t.n) - 1, 0) * sum(
               (p.full_rows / t.full_rows - p.full_tokens / t.full_tokens - p.later_rows / nullif(t.later_rows, 0)
                + p.tokens / t.tokens) ** 2
           )) AS left_out_half
    FROM pairs AS p JOIN totals AS t USING (attempt_id) GROUP BY ALL
),
savings AS (
    SELECT *, full_rows / full_tokens AS full_rows_a_token, rows / tokens AS rows_a_token,
           later_rows / tokens AS later_rows_a_token, (full_rows / full_tokens) / (rows / tokens) AS counted,
           (full_rows / full_tokens) / nullif(later_rows / tokens, 0) AS left_out
    FROM totals
)
SELECT DISTINCT p.task, p.model, p.setting, p.head, p.min_exit, p.vocabulary, s.full_rows_a_token, s.rows_a_token,
       s.later_rows_a_token, s.counted, s.counted * exp(-e.counted_half) AS counted_low,
       s.counted * exp(e.counted_half) AS counted_high, s.left_out, s.left_out * exp(-e.left_out_half) AS left_out_low,
       s.left_out * exp(e.left_out_half) AS left_out_high, p.mean_exit_layer, p.blocks, CAST(s.tokens AS BIGINT) AS tokens,
       s.n
FROM pairs AS p JOIN savings AS s USING (attempt_id) JOIN errors AS e USING (attempt_id)
ORDER BY p.task, p.model, p.setting, p.head, p.min_exit;
