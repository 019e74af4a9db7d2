-- Share of probed tokens by the block whose top-1 is the final one for the first time, one row per task, model and
-- block; ideal_exit: mean of that block. Then the paper's values on data of the same kind, with the models' number of
-- blocks.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH chosen AS (SELECT attempt_id FROM plain_probes WHERE is_largest AND NOT random_weights),
probed AS (
    SELECT task, task_label, model, attempt_id, doc_key, block, first_matches, n
    FROM probe_by_document SEMI JOIN chosen USING (attempt_id)
),
shares AS (
    SELECT task_label, model, block, sum(first_matches) / sum(n) AS share, half_width(first_matches, n) AS half_width,
           CAST(sum(n) AS BIGINT) AS n
    FROM probed GROUP BY ALL
),
ideal AS (
    SELECT task_label, model, sum(exits) / sum(n) AS ideal_exit, half_width(exits, n) AS ideal_half_width,
           max(blocks) AS blocks
    FROM (
        SELECT task_label, model, attempt_id, doc_key, sum(block * first_matches) AS exits, max(n) AS n,
               max(block) AS blocks
        FROM probed GROUP BY ALL
    )
    GROUP BY ALL
)
SELECT 'ours' AS origin, task_label AS task, model || coalesce(', ' || training, '') AS series, model, blocks,
       block, round(share, 6) AS share, round(half_width, 6) AS half_width,
       round(ideal_exit, 6) AS ideal_exit, round(ideal_half_width, 6) AS ideal_half_width, n
FROM shares
JOIN ideal USING (task_label, model)
JOIN objectives USING (model)
UNION ALL BY NAME
SELECT 'published' AS origin, t.task_label AS task, p.figure_or_table || ', ' || p.dataset AS series, p.model,
       coalesce(try_cast(regexp_extract(p.model, '\((\d+)\)', 1) AS INTEGER), 6) AS blocks, p.value AS ideal_exit
FROM (SELECT DISTINCT task, task_label FROM probed) AS t
JOIN (
    SELECT *, CASE WHEN dataset IN ('WMT22 (10 directions)', 'WMT14 EN-DE', 'IWSLT14 DE-EN') THEN 'wmt-en-fr'
                   WHEN dataset = 'CNN/DM' THEN 'samsum' WHEN dataset = 'NarrativeQA' THEN 'squad' END AS task
    FROM published
    WHERE source = 'NATCAP paper' AND figure_or_table IN ('Table 1', 'Table 2') AND metric = 'avg_ideal_exit_layer'
) AS p USING (task)
ORDER BY task, origin, series, model, block, ideal_exit;
