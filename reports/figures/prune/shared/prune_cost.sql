asked AS (
    SELECT *, (SELECT block FROM printed_at AS p WHERE p.loss = g.loss) / 24 AS published_depth
    FROM gates AS g
    WHERE loss IN ('last', 'weighted', 'unknown') AND (method, head) IN (SELECT (method, head) FROM shown)
    QUALIFY row_number() OVER (  -- if lists of several sizes were run, the latest run
        PARTITION BY model, setting, full_depth_attempt_id, method, head, min_exit ORDER BY attempt_id DESC
    ) = 1
),
panels AS (  -- documents and first gated block: where most were run, and of these the nearest to the published block
    SELECT task_label, model, setting, full_depth_attempt_id, min_exit
    FROM asked
    GROUP BY task_label, model, setting, full_depth_attempt_id, min_exit
    HAVING count(*) > 1 AND bool_or(method = 'calm-softmax' AND head = 'full')
    QUALIFY row_number() OVER (
        PARTITION BY task_label, model, setting
        ORDER BY count(*) DESC, abs(min_exit / max(blocks) - max(published_depth)), min_exit, max(n) DESC,
                 full_depth_attempt_id
    ) = 1
),
chosen AS (
    SELECT a.* FROM asked AS a JOIN panels USING (task_label, model, setting, full_depth_attempt_id, min_exit)
),
tokens AS (
    SELECT attempt_id, doc_key, exit_layer, count(*) AS tokens, sum(head_rows) AS head_rows
    FROM token_trace
    WHERE choice IS NULL AND attempt_id IN (SELECT attempt_id FROM chosen UNION SELECT full_depth_attempt_id FROM chosen)
    GROUP BY ALL
),
full_depth AS (
    SELECT attempt_id AS full_depth_attempt_id, doc_key, sum(head_rows) AS full_rows
    FROM tokens WHERE attempt_id IN (SELECT full_depth_attempt_id FROM chosen) GROUP BY ALL
),
vocabularies AS (  -- full depth reads the whole head once per token
    SELECT attempt_id AS full_depth_attempt_id, max(head_rows / tokens) AS vocabulary
    FROM tokens WHERE attempt_id IN (SELECT full_depth_attempt_id FROM chosen) GROUP BY ALL
),
sizes AS (
    SELECT attempt_id, method, head, min_exit, blocks, CAST(params ->> 'k_first' AS INTEGER) AS k_first,
           CAST(params ->> 'k_min' AS INTEGER) AS k_min, vocabulary
    FROM chosen JOIN vocabularies USING (full_depth_attempt_id)
),
rule AS (  -- rows that the published rule counts at each gated block
    SELECT attempt_id, block,
           CASE WHEN head = 'full' OR block = blocks THEN vocabulary
                WHEN block = min_exit THEN 0
                ELSE least(vocabulary, greatest(k_min, floor(
                    k_first / (1 + (k_first - k_min) / k_min * if(head LIKE 'pruned-decaying%', block, min_exit) / blocks)
                ))) END AS rows
    FROM sizes, unnest(range(min_exit, blocks + 1)) AS asked_at (block)
),
rule_to_exit AS (
    SELECT attempt_id, block AS exit_layer, sum(rows) OVER (PARTITION BY attempt_id ORDER BY block) AS rows FROM rule
),
documents AS (
    SELECT attempt_id, t.doc_key, sum(t.head_rows) AS rows, sum(t.tokens * u.rows) AS rule_rows,
           max(d.full_rows) AS full_rows
    FROM chosen AS c
    JOIN tokens AS t USING (attempt_id)
    JOIN rule_to_exit AS u USING (attempt_id, exit_layer)
    JOIN full_depth AS d ON d.full_depth_attempt_id = c.full_depth_attempt_id AND d.doc_key = t.doc_key
    GROUP BY ALL
),
heads AS (
    SELECT attempt_id, sum(rows) / sum(full_rows) AS head, half_width(rows, full_rows) AS half,
           sum(rule_rows) / sum(full_rows) AS rule, half_width(rule_rows, full_rows) AS rule_half, count(*) AS n
    FROM documents GROUP BY ALL
),
quantities AS (
    SELECT attempt_id, 'score' AS quantity, value, ci_low, ci_high, n FROM chosen WHERE value IS NOT NULL
    UNION ALL
    SELECT attempt_id, 'model', 1 / m.value, 1 / m.ci_high, 1 / m.ci_low, m.n
    FROM chosen JOIN metric_values AS m USING (attempt_id)
    WHERE m.metric = 'ideal_speedup_flops' AND m.is_current AND m.value > 0
    UNION ALL
    SELECT attempt_id, 'head', head, if(half IS NULL, NULL, greatest(0, head - half)), head + half, n FROM heads
    UNION ALL
    SELECT attempt_id, 'rule', rule, if(rule_half IS NULL, NULL, greatest(0, rule - rule_half)), rule + rule_half, n FROM heads
    UNION ALL
    SELECT attempt_id, 'speedup', speedup, speedup_low, speedup_high, timed_documents
    FROM chosen WHERE speedup IS NOT NULL
),
printed AS (
    SELECT s.method, s.head, if(p.dataset = 'SQuAD', 'squad', 'samsum') AS task, p.model LIKE '%fine-tuned' AS fine_tuned,
           if(p.metric = 'lm_head_flops_per_sample', 'rule', 'score') AS quantity, p.value,
           if(p.figure_or_table LIKE 'final%', 'final', 'draft') AS edition,
           max(p.value) FILTER (s.method = 'calm-softmax' AND s.head = 'full') OVER (
               PARTITION BY p.dataset, p.model, p.metric, edition
           ) AS unpruned
    FROM published AS p JOIN shown AS s ON s.published_as = p.method
    WHERE regexp_matches(p.figure_or_table, (SELECT figures FROM printed_in))
)
SELECT 'ours' AS origin, c.task_label AS task, c.model, c.setting, c.loss, c.blocks, c.min_exit, c.method, c.head,
       c.metric, q.quantity, q.value, q.ci_low, q.ci_high, c.full_value, c.aa_low, c.aa_high, q.n,
       c.speedup_per_token, c.is_other_length
FROM chosen AS c JOIN quantities AS q USING (attempt_id)
UNION ALL
SELECT p.edition, c.task_label, c.model, c.setting, c.loss, c.blocks, c.min_exit, p.method, p.head, c.metric, p.quantity,
       if(p.quantity = 'score', p.value, p.value / p.unpruned * h.rule), NULL, NULL, c.full_value, NULL, NULL, NULL, NULL, NULL
FROM chosen AS c
JOIN heads AS h USING (attempt_id)
JOIN printed AS p ON p.task = c.task AND p.fine_tuned = (c.loss = 'weighted')
WHERE c.method = 'calm-softmax' AND c.head = 'full'
ORDER BY task, model, setting, origin, quantity, method, head;
