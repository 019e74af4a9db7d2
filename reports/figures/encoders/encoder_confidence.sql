-- Encoders: score of the gate, by block and by whether the block's label is right, over the documents that reached the
-- block. Of each method the run that evaluated the gate most often is used; of several, the newest. pairs: a right and
-- a wrong label at one block; wins: pairs in which the right one has the higher score (ties count half). Regression has
-- no labels. The last block has no gate.
WITH asked AS (
    SELECT
        f.attempt_id, f.model, f.task_label, f.method, f.params, f.kv_policy, f.blocks, f.n, t.block, t.is_right, t.score::DOUBLE AS score
    FROM frontier AS f JOIN (SELECT attempt_id, block, is_right, score FROM sequence_trace) AS t USING (attempt_id)
    WHERE NOT f.random_weights AND t.is_right IS NOT NULL AND isfinite(t.score) AND f.method NOT IN ('static', 'random', 'oracle')
),
chosen AS (
    SELECT attempt_id FROM asked GROUP BY attempt_id, model, task_label, method, params
    QUALIFY row_number() OVER (PARTITION BY model, task_label, method ORDER BY count(*) DESC, params, attempt_id DESC) = 1
),
ranked AS (
    SELECT
        *, rank() OVER (PARTITION BY attempt_id, block ORDER BY score)
            + (count(*) OVER (PARTITION BY attempt_id, block, score) - 1) / 2 AS place
    FROM asked SEMI JOIN chosen USING (attempt_id)
),
counted AS (
    SELECT
        attempt_id, block,
        coalesce(sum(place) FILTER (is_right), 0) - count_if(is_right) * (count_if(is_right) + 1) / 2 AS wins,
        count_if(is_right) * count_if(NOT is_right) AS pairs
    FROM ranked GROUP BY ALL
)
SELECT
    r.model, r.task_label AS task, r.method, r.params, r.kv_policy, r.blocks, r.block, r.is_right, avg(r.score) AS mean,
    mean_half_width(r.score) AS half_width, count(*) AS texts, any_value(c.wins) AS wins, any_value(c.pairs) AS pairs, r.n
FROM ranked AS r JOIN counted AS c USING (attempt_id, block)
GROUP BY r.model, r.task_label, r.method, r.params, r.kv_policy, r.blocks, r.block, r.is_right, r.n, r.attempt_id
ORDER BY task, r.model, r.method, r.params, r.is_right DESC, r.block;
