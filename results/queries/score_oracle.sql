-- Quality: How many blocks would an oracle of scores need?
-- Of full depth and the static depths that were run, the smallest that scores each document as well as full depth in
-- the task's headline metric. One row per depth: number of documents that need it, and the mean over all n documents.
WITH scored AS (
    SELECT
        f.model, f.task_label, f.kv_policy, f.seed, f.setting_id, f.blocks, a.doc_key,
        (f.params ->> 'exit_layer')::INTEGER AS exit_layer, a.full_score,
        CASE WHEN f.lower_is_better THEN a.score <= a.full_score ELSE a.score >= a.full_score END AS is_as_good
    FROM frontier AS f
    JOIN answers AS a USING (attempt_id)
    WHERE f.method = 'static' AND f.execution = 'real'
),
needed AS (
    SELECT
        model, task_label, kv_policy, seed, setting_id, doc_key,
        coalesce(min(exit_layer) FILTER (is_as_good), any_value(blocks)) AS exit_layer
    FROM scored
    WHERE full_score IS NOT NULL
    GROUP BY ALL
)
SELECT
    model, task_label, kv_policy, seed, exit_layer, count(*) AS documents,
    count(*) / sum(count(*)) OVER oracle AS share,
    sum(exit_layer * count(*)) OVER oracle / sum(count(*)) OVER oracle AS mean_exit_layer,
    (sum(count(*)) OVER oracle)::BIGINT AS n
FROM needed
GROUP BY model, task_label, kv_policy, seed, setting_id, exit_layer
WINDOW oracle AS (PARTITION BY setting_id, kv_policy)
ORDER BY model, task_label, kv_policy, seed, setting_id, exit_layer;
