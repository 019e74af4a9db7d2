-- Ideal exit, share of tokens that can exit before the last block, and score of full depth: one row per probe run, or,
-- of an encoder without one, a run of the oracle, whose exits are the ideal ones; then the paper's values on data of
-- the same kind, one row per table, model and data. Rows of encoders are next to the published ones of their task.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH documents AS (
    SELECT attempt_id, doc_key, sum(block * first_matches) AS exits,
           max(n) AS n, max(n) - arg_max(first_matches, block) AS early, max(block) AS blocks
    FROM probe_by_document
    WHERE NOT random_weights
    GROUP BY ALL
),
probed AS (
    SELECT attempt_id, sum(exits) / sum(n) AS ideal_exit, half_width(exits, n) AS ideal_half_width,
           sum(early) / sum(n) AS can_exit, half_width(early, n) AS can_exit_half_width, max(blocks) AS blocks,
           CAST(sum(n) AS BIGINT) AS n
    FROM documents GROUP BY ALL
),
told AS (  -- of several runs of the oracle (in other batches), the one with the most documents, of these the newest
    SELECT t.attempt_id, r.model, r.task_label, avg(t.exit_layer) AS ideal_exit, mean_half_width(t.exit_layer) AS ideal_half_width,
           avg((t.exit_layer < r.blocks)::INTEGER) AS can_exit,
           half_width((t.exit_layer < r.blocks)::INTEGER, 1) AS can_exit_half_width, max(r.blocks) AS blocks, count(*) AS n
    FROM token_trace AS t JOIN runs AS r USING (attempt_id)
    WHERE r.model_kind = 'encoder' AND r.kind = 'quality' AND r.method = 'oracle' AND (r.params ->> 'match') = 'first'
          AND NOT r.random_weights AND r.conforms IS DISTINCT FROM false
    GROUP BY t.attempt_id, r.model, r.task_label
    QUALIFY row_number() OVER (PARTITION BY r.model, r.task_label ORDER BY count(*) DESC, t.attempt_id DESC) = 1
),
ideal AS (
    FROM probed UNION ALL BY NAME
    SELECT * EXCLUDE (model, task_label) FROM told WHERE (model, task_label) NOT IN (
        SELECT (model, task_label) FROM runs SEMI JOIN probed USING (attempt_id)
    )
),
ours AS (
    SELECT CASE WHEN r.model_kind = 'encoder' THEN 'classification (encoders)'
                WHEN regexp_matches(r.task, '-[a-z]{2}-[a-z]{2}$') THEN 'translation'
                WHEN r.task IN ('samsum', 'dialogsum', 'cnn-dailymail', 'bigpatent') THEN 'summarisation'
                WHEN r.task IN ('squad', 'lm-eval:narrativeqa') THEN 'question answering'
                WHEN regexp_matches(r.task, '^lm-eval:(gsm8k|mbpp|humaneval|strategyqa)') THEN 'code and reasoning'
                ELSE r.task END AS kind,
           r.task_label AS data, r.parameters, r.model, coalesce(t.training, 'not known') AS training, p.blocks,
           round(p.ideal_exit, 6) AS ideal_exit, round(p.ideal_half_width, 6) AS ideal_half_width,
           round(100 * p.can_exit, 6) AS can_exit, round(100 * p.can_exit_half_width, 6) AS can_exit_half_width,
           f.metric || ' ' || printf('%.1f', f.value)
               || coalesce(printf(' [%.1f, %.1f]', f.ci_low, f.ci_high), '') AS score, p.n,
           'here' AS printed_in, lower(regexp_replace(r.task, '-', '', 'g')) AS place, r.attempt_id
    FROM ideal AS p
    JOIN runs AS r USING (attempt_id)
    LEFT JOIN frontier AS f ON f.attempt_id = r.full_depth_attempt_id AND f.execution = 'real'
    JOIN objectives AS t ON t.model = r.model
),
theirs AS (
    SELECT CASE WHEN dataset LIKE 'WMT%' OR dataset LIKE 'IWSLT%' THEN 'translation'
                WHEN dataset = 'CNN/DM' THEN 'summarisation' WHEN dataset = 'NarrativeQA' THEN 'question answering'
                WHEN dataset LIKE 'GLUE%' THEN 'classification (encoders)' ELSE 'code and reasoning' END AS kind,
           dataset AS data, model,
           CASE WHEN setting = 'with joint optimisation' THEN 'every block' ELSE 'last block' END AS training,
           coalesce(try_cast(regexp_extract(model, '\((\d+)\)', 1) AS INTEGER), 6) AS blocks,
           max(value) FILTER (metric = 'avg_ideal_exit_layer') AS ideal_exit,
           max(value) FILTER (metric IN ('percent_tokens_can_exit', 'percent_can_exit')) AS can_exit,
           string_agg(metric || ' ' || value, ', ' ORDER BY metric) FILTER (
               metric NOT IN ('avg_ideal_exit_layer', 'percent_tokens_can_exit', 'percent_can_exit',
                              'mean_generated_length')
           ) AS score,
           figure_or_table AS printed_in, lower(regexp_replace(dataset, 'GLUE |-', '', 'g')) AS place
    FROM published
    WHERE source = 'NATCAP paper'
      AND figure_or_table IN ('Table 1', 'Table 2', 'Table 3', 'Table 7', 'Table 8', 'Table 10')
    GROUP BY ALL
),
not_here AS (
    SELECT kind, 'not measured here' AS data, 'here' AS printed_in
    FROM (VALUES ('classification (encoders)'), ('code and reasoning')) AS v (kind)
    WHERE kind NOT IN (SELECT kind FROM ours)
)
SELECT * EXCLUDE (place)
FROM (FROM ours UNION ALL BY NAME FROM theirs UNION ALL BY NAME FROM not_here)
WHERE EXISTS (FROM ours)
ORDER BY kind NOT IN (SELECT kind FROM ours), kind,
         CASE WHEN kind = 'classification (encoders)' THEN (place NOT IN (SELECT place FROM ours), place) END,
         printed_in <> 'here', length(printed_in), printed_in, data, model, training DESC, attempt_id;
