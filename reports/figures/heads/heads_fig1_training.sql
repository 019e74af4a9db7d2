-- How exit heads learn: agreement with the model and entropy of each head by step. One row per training, block and
-- step.
SELECT model
       || if(count(DISTINCT recipe) OVER (PARTITION BY model) > 1, ' · ' || recipe, '')
       || if(count(DISTINCT weights_sha256) OVER (PARTITION BY model, recipe) > 1, ' · ' || weights_sha256[:6], '')
           AS training,
       metric, block, step, value
FROM training_curves
WHERE metric IN ('exit_head_accuracy', 'exit_head_entropy_nats') AND block IS NOT NULL
ORDER BY training, metric, block, step;
