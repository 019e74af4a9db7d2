-- Pruned heads under the contrastive gate (JSD) by the first gated block: mean exit layer and the task's score. One row
-- per setting and metric.
-- Published values: their block b of 24 is drawn at our b L / 24, and so are their mean exit layers. Figure 11a's list
-- of fixed pruning is shifted by an inserted value (see `note`): its last two entries, min exits 6 and 3, are excluded.
WITH shown (method, head) AS (
    VALUES ('contrastive-jsd', 'full'), ('contrastive-jsd', 'pruned-fixed'),
           ('contrastive-jsd', 'pruned-decaying-idsorted'), ('contrastive-jsd', 'pruned-decaying'),
           ('contrastive-jsd', 'pruned-adaptive-code'), ('contrastive-jsd', 'pruned-adaptive')
),
-- continues in shared/prune_gates.sql
-- continues in shared/prune_sweep.sql
