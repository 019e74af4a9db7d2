-- Rank of the final token (full depth's choice; 1 is the top) at each block: five quantiles. One row per model, task
-- and block.
-- Of runs with more tokens, about 20,000 are used: whole documents, in the order of a digest of their key.
WITH
-- continues in shared/prune_probes.sql
documents AS (
    SELECT attempt_id, doc_key, sum(n) OVER (PARTITION BY attempt_id ORDER BY md5(doc_key), doc_key) - n AS tokens_before
    FROM probe_by_document
    WHERE block = 1 AND attempt_id IN (SELECT attempt_id FROM probes)
),
drawn AS (SELECT attempt_id, doc_key FROM documents WHERE tokens_before < 20_000),
ranks AS (
    SELECT attempt_id, unnest(range(1, len(rank_final) + 1)) AS block, unnest(rank_final) AS rank
    FROM probe_trace SEMI JOIN drawn USING (attempt_id, doc_key)
),
quantiles AS (
    SELECT attempt_id, block, quantile_disc(rank, [0.01, 0.25, 0.5, 0.75, 0.99]) AS at, count(*) AS n
    FROM ranks GROUP BY ALL
)
SELECT a.task_label AS task,
       a.model || CASE a.loss WHEN 'last' THEN ' (last block)' WHEN 'weighted' THEN ' (every block)' ELSE '' END
       || if(count(DISTINCT a.setting) OVER (PARTITION BY a.task_label, a.model) > 1, ', ' || a.setting, '') AS series,
       a.model, a.setting, a.loss, a.blocks, q.block, q.at[1] AS lowest, q.at[2] AS lower, q.at[3] AS median,
       q.at[4] AS upper, q.at[5] AS highest, q.n
FROM probes AS a JOIN quantiles AS q USING (attempt_id)
ORDER BY task, series, q.block;
