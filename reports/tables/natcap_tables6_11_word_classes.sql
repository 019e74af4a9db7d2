-- Ideal exit by word class (UPOS), one row per task, model, tagger and class, next to the paper's value for the class.
-- Rounded, because the last digits of sums depend on the order in which threads add.
WITH tagged AS (
    SELECT DISTINCT r.setting_id, t.doc_key, t.position, t.upos, t.tagger
    FROM token_tags AS t JOIN runs AS r USING (attempt_id)
    WHERE NOT t.random_weights
),
probes AS (  -- if a model was probed several times on a task: the run with the most documents, of these the latest
    SELECT r.attempt_id, t.setting_id, t.tagger
    FROM (SELECT DISTINCT setting_id, tagger FROM tagged) AS t JOIN runs AS r USING (setting_id)
    WHERE r.kind = 'probe' AND r.record IS NULL
    QUALIFY row_number() OVER (
        PARTITION BY r.task_label, r.model, t.tagger ORDER BY r.documents DESC, r.attempt_id DESC
    ) = 1
),
documents AS (
    SELECT p.task_label, p.model, t.tagger, t.upos, p.attempt_id, p.doc_key, sum(p.first_match) AS exits,
           count(*) AS n, max(r.blocks) AS blocks
    FROM tagged AS t
    JOIN probes USING (setting_id, tagger)
    JOIN runs AS r USING (attempt_id)
    JOIN probe_trace AS p
        ON p.attempt_id = r.attempt_id AND p.doc_key = t.doc_key AND p.position = t.position
    GROUP BY ALL
),
classes AS (
    SELECT task_label, model, tagger, upos, max(blocks) AS blocks, sum(exits) / sum(n) AS ideal_exit,
           half_width(exits, n) AS half_width, CAST(sum(n) AS BIGINT) AS n
    FROM documents GROUP BY ALL
),
theirs AS (
    SELECT replace(setting, 'UPOS ', '') AS upos,
           max(value) FILTER (metric = 'avg_ideal_exit_layer') AS published_exit,
           max(value) FILTER (metric = 'frequency') AS published_frequency
    FROM published
    WHERE source = 'NATCAP paper' AND figure_or_table = 'Table 11'
    GROUP BY ALL
)
SELECT c.task_label AS task, c.model, c.tagger, c.upos, c.blocks, round(c.ideal_exit, 6) AS ideal_exit,
       round(c.half_width, 6) AS half_width, round(100 * c.n / sum(c.n) OVER of_run, 6) AS frequency, c.n,
       t.published_exit, t.published_frequency
FROM classes AS c LEFT JOIN theirs AS t USING (upos)
WINDOW of_run AS (PARTITION BY c.task_label, c.model, c.tagger)
ORDER BY task, c.model, c.tagger, c.n DESC, c.upos;
