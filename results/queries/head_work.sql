-- Cost and speed: How much of the work is spent in LM heads?
-- A gate that needs logits evaluates the LM head at every gated block. heads_per_token: rows of the head multiplied, in
-- units of a full head (full depth: one per token); blocks_per_token: blocks executed. With a large vocabulary and
-- small blocks, a head costs as much as several blocks. Compare ideal_speedup_flops, which counts both, with the blocks
-- alone.
WITH work AS (
    SELECT attempt_id, avg(head_rows) AS head_rows, avg(blocks_run) AS blocks_run, count(*) AS n
    FROM token_trace WHERE head_rows IS NOT NULL GROUP BY attempt_id
)
SELECT
    r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed,
    w.head_rows / full_depth.head_rows AS heads_per_token,
    w.blocks_run AS blocks_per_token, r.blocks, r.blocks / w.blocks_run AS speedup_blocks_alone,
    f.ideal_speedup_flops, w.n
FROM work AS w
JOIN runs AS r USING (attempt_id)
JOIN work AS full_depth ON full_depth.attempt_id = r.full_depth_attempt_id
LEFT JOIN frontier AS f ON f.attempt_id = w.attempt_id
ORDER BY r.model, r.task_label, r.method, r.label, r.kv_policy, r.seed, r.cell_id;
