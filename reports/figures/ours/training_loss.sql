-- Training loss of each training, by step. One row per training and step.
SELECT coalesce(t.loss, 'not known') AS loss,
       c.model
       || if(count(DISTINCT c.recipe) OVER (PARTITION BY c.model) > 1, ' · ' || c.recipe, '')
       || if(count(DISTINCT c.weights_sha256) OVER (PARTITION BY c.model, c.recipe) > 1, ' · ' || c.weights_sha256[:6], '')
           AS training,
       c.step, c.value
FROM training_curves AS c
JOIN trainings AS t USING (weights_sha256)
WHERE c.metric = 'loss_nats' AND c.block IS NULL
ORDER BY loss, training, c.step;
