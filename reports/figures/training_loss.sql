-- The loss that each training minimised, by step. One row a training and step.
SELECT model
       || if(count(DISTINCT recipe) OVER (PARTITION BY model) > 1, ' · ' || recipe, '')
       || if(count(DISTINCT weights_sha256) OVER (PARTITION BY model, recipe) > 1, ' · ' || weights_sha256[:6], '')
           AS training,
       step, value
FROM training_curves
WHERE metric = 'loss_nats' AND block IS NULL
ORDER BY training, step;
