-- Cost and speed: How many skipped blocks are run later after all?
-- If a KV policy runs skipped blocks later, or full depth verifies tokens, a token costs more blocks than its exit
-- layer. blocks_caught_up: blocks executed beyond the exit layer, per token; share_of_skipped: these as a share of the
-- blocks that the exits skipped.
WITH work AS (
    SELECT
        attempt_id, avg(exit_layer) AS mean_exit_layer, avg(blocks_run) AS blocks_per_token,
        avg(blocks_run - exit_layer) AS blocks_caught_up, sum(blocks_run - exit_layer) AS caught_up,
        sum(exit_layer) AS depth, count(*) AS n
    FROM token_exit GROUP BY attempt_id
)
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, w.mean_exit_layer, w.blocks_per_token,
    w.blocks_caught_up, w.caught_up / nullif(r.blocks * w.n - w.depth, 0) AS share_of_skipped, w.n
FROM work AS w JOIN runs AS r USING (attempt_id)
WHERE r.kind = 'quality' AND NOT r.is_full_depth
ORDER BY r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id;
