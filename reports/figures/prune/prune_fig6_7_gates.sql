-- Gates over the whole vocabulary by the first
-- gated block: mean exit layer and the task's score. One row per setting and metric.
-- Published values: their block b of 24 is drawn at our b L / 24, and so are their mean exit layers.
WITH shown (method, head) AS (
    VALUES ('calm-softmax', 'full'), ('contrastive-reweighted', 'full'), ('contrastive-jsd', 'full')
),
-- continues in shared/prune_gates.sql
-- continues in shared/prune_sweep.sql
