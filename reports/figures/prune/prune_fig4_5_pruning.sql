-- The softmax gate over whole and pruned heads: score, FLOPs and speed. One row per model, task, read-out and quantity.
-- FLOPs are those of whole answers as multiples of full depth's: of the whole model, of the LM head (a row read costs
-- 2 d_model), and of the LM head by the published rule (d_model^2 a row, in multiples too; without the full read at the
-- first gated block of a pruned head, and without the earlier blocks that a contrast reads).
WITH shown (method, head, published_as) AS (
    VALUES ('calm-softmax', 'full', 'softmax diff, no pruning'),
           ('calm-softmax', 'pruned-fixed', 'softmax diff + fixed pruning'),
           ('calm-softmax', 'pruned-decaying-idsorted', 'softmax diff + decaying pruning'),
           ('calm-softmax', 'pruned-decaying', NULL)
),
printed_in (figures) AS (VALUES ('^PRUNE Fig 4/5')),
printed_at (loss, block) AS (VALUES ('weighted', 2), ('last', 7), ('unknown', 7)),  -- first gated block, of 24
-- continues in shared/prune_gates.sql
-- continues in shared/prune_cost.sql
