-- Provenance: How did the losses of trained models develop?
-- One row per model, metric and block (none: the whole model): the logged value at the first step, halfway, and at the
-- last step. If the loss of an early block still falls much in the second half, its training had not converged.
SELECT
    model, recipe, metric, block, arg_min(value, step) AS first_value,
    arg_min(value, step) FILTER (step >= last_step / 2) AS value_half_way, arg_max(value, step) AS last_value,
    max(step) AS last_step, weights_sha256
FROM (SELECT *, max(step) OVER (PARTITION BY weights_sha256) AS last_step FROM training_curves)
GROUP BY model, recipe, metric, block, weights_sha256
ORDER BY model, recipe, weights_sha256, metric, block NULLS FIRST;
