-- Quality and measured speed of the six measures and of full depth, as shares of full depth's: one row per task, model,
-- setting and parameters, of models trained to exit at every block or at some of them (or of unknown training); then the
-- published runs, relative to their own run without early exit. The blog's metrics: F1, ROUGE-1, BLEU; the headline
-- metric of other tasks.
WITH timed AS (
    SELECT f.task, f.task_label, f.model, f.conditions AS setting,
           f.method, f.params, f.kv_policy, v.metric, share_kept(v.value, w.value, v.lower_is_better) AS quality,
           share_kept(if(v.lower_is_better, v.ci_high, v.ci_low), w.value, v.lower_is_better) AS quality_low,
           share_kept(if(v.lower_is_better, v.ci_low, v.ci_high), w.value, v.lower_is_better) AS quality_high,
           w.value AS full_value, f.speedup, f.speedup_low, f.speedup_high, f.aa_low, f.aa_high, v.n, f.blocks,
           f.mean_exit_layer, f.is_full_depth, f.speedup_per_token, f.tokens_per_request, f.full_tokens_per_request,
           f.is_other_length, f.timed_documents, f.timed_rounds, f.timing_attempt_id, f.cell_id
    FROM frontier AS f
    JOIN metric_values AS v
        ON v.attempt_id = f.attempt_id AND v.is_current AND v.metric = if(f.task = 'samsum', 'rouge1', f.metric)
    JOIN metric_values AS w
        ON w.attempt_id = f.full_depth_attempt_id AND w.is_current AND w.metric = v.metric
        AND w.metric_version = v.metric_version
    WHERE NOT f.random_weights AND f.execution = 'real' AND f.speedup IS NOT NULL AND w.value > 0
        AND (
            f.is_full_depth
            OR f.method IN ('calm-softmax', 'calm-saturation', 'calm-classifier', 'mee-mlp3', 'mee-lstm', 'mee-top3')
            AND f.kv_policy = 'state-copy' AND coalesce(f.params ->> 'rule', 'constant') = 'constant'
            AND coalesce(f.params ->> 'head', 'full') = 'full' AND coalesce(f.params ->> 'decay', 'code') <> 'paper'
        )
        AND f.model NOT IN (SELECT model FROM trainings WHERE loss NOT LIKE 'weighted%')
),
ours AS (
    SELECT t.*, m.value AS ms_per_request, 1000 / k.value AS tokens_per_second
    FROM timed AS t
    LEFT JOIN metric_values AS m ON m.attempt_id = t.timing_attempt_id AND m.metric = 'ms_per_request' AND m.is_current
    LEFT JOIN metric_values AS k ON k.attempt_id = t.timing_attempt_id AND k.metric = 'ms_per_token' AND k.is_current
    WHERE (t.task_label, t.model, t.setting) IN (SELECT (task_label, model, setting) FROM timed WHERE NOT is_full_depth)
),
printed AS (
    SELECT if(dataset = 'CNN/DM', 'samsum', 'squad') AS task,
           MAP {
               'no early exit': 'full', 'softmax diff': 'calm-softmax', 'hidden-state saturation': 'calm-saturation',
               'CALM meta classifier (MLP)': 'calm-classifier', 'MEE last-3-hidden MLP': 'mee-mlp3',
               'MEE recurrent (LSTM) classifier': 'mee-lstm', 'MEE top-3 heuristic': 'mee-top3'
           }[method] AS method,
           max(value) FILTER (metric IN ('f1', 'rouge1')) AS score,
           max(value) FILTER (metric = 'samples_per_second') AS samples_per_second
    FROM published
    WHERE source IN ('MEE repo SQUAD.log', 'MEE repo CNNDM.log', 'MEE repo create_plots notebook')
        AND figure_or_table NOT LIKE '%mid-training%' AND EXISTS (FROM ours)
    GROUP BY ALL
),
relative AS (
    SELECT p.task, p.method, p.score / n.score AS quality, p.samples_per_second / n.samples_per_second AS speedup
    FROM printed AS p JOIN printed AS n ON n.task = p.task AND n.method = 'full'
    WHERE p.method <> 'full'
)
SELECT 'ours' AS origin, task, task_label, model, setting, method, params, kv_policy, metric, quality, quality_low,
       quality_high, full_value, speedup, speedup_low, speedup_high, aa_low, aa_high, ms_per_request, tokens_per_second,
       mean_exit_layer, blocks, n, is_full_depth, speedup_per_token, tokens_per_request, full_tokens_per_request,
       is_other_length, timed_documents, timed_rounds, cell_id
FROM ours
UNION ALL BY NAME
SELECT 'published' AS origin, task, method, quality, speedup FROM relative
ORDER BY origin, task_label, task, model, setting, method, speedup, cell_id;
