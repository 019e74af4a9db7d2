-- Agreement: What happens after the first token that differs from full depth's?
-- Before and after it (the differing token itself counts as after): number of tokens, share equal to full depth's token
-- at the same position, and exit layer. A share near 0 after it means that outputs never return to full depth's.
SELECT model, task_label, method, label, kv_policy, seed, diverged, share_equal, mean_exit_layer, tokens
FROM (
    SELECT attempt_id, diverged, avg(equal_full::INTEGER) AS share_equal, avg(exit_layer) AS mean_exit_layer, count(*) AS tokens
    FROM (
        SELECT
            attempt_id, unnest(exit_layer) AS exit_layer, unnest(is_equal) AS equal_full,
            coalesce(unnest(range(1, len(exit_layer) + 1)) >= first_divergence, false) AS diverged
        FROM document_exit JOIN run_names USING (attempt_id)
        WHERE is_known AND execution = 'real' AND method <> 'full'
    ) GROUP BY ALL
) JOIN run_names USING (attempt_id)
ORDER BY model, task_label, method, label, kv_policy, seed, cell_id, diverged;
