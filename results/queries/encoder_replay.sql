-- Encoders: What would the score and depth of an encoder be at thresholds that were not run?
-- For each method's deepest run on a model and task, at $steps thresholds spread over the scores it recorded. The
-- result is exact, because the score of a text does not depend on the threshold. level is on the scale of the score;
-- higher is more confident.
-- $steps = 10: thresholds of each run
WITH depth AS (
    SELECT attempt_id, sum(block) FILTER (exited) AS depth FROM sequence_trace
    WHERE NOT random_weights AND coalesce(params ->> 'batch', 'row') <> 'whole' GROUP BY attempt_id
),
deepest AS (
    SELECT attempt_id FROM depth JOIN run_names USING (attempt_id)
    QUALIFY row_number() OVER (PARTITION BY model, task_label, method ORDER BY depth DESC, attempt_id DESC) = 1
),
replayed AS (SELECT * FROM sequence_replay SEMI JOIN deepest USING (attempt_id) WHERE highest_level IS NOT NULL),
levels AS (
    SELECT DISTINCT attempt_id, unnest(quantile_disc(below_level, list_transform(range($steps), lambda step: step / greatest($steps - 1, 1)))) AS level
    FROM replayed WHERE isfinite(below_level) GROUP BY attempt_id
)
SELECT
    model, task_label, method, l.level, avg(block) AS mean_exit_layer, 100 * avg(is_right::INT) AS right_percent,
    avg(abs(prediction - gold)) FILTER (is_right IS NULL) AS mean_error, count(*) AS n
FROM replayed JOIN levels AS l USING (attempt_id)
WHERE from_level <= l.level AND l.level < below_level
GROUP BY ALL
ORDER BY model, task_label, method, l.level;
