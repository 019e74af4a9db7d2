-- Quality: How much do results vary over seeds?
-- Runs that differ only in the seed: mean and standard deviation of score, depth and agreement. If two methods differ
-- by less than a few of these deviations, more seeds are needed, whatever the interval over documents.
SELECT
    model, task_label, method, label, kv_policy, metric, count(*) AS seeds, avg(value) AS mean_value,
    stddev_samp(value) AS sd_value, avg(mean_exit_layer) AS mean_exit_layer,
    stddev_samp(mean_exit_layer) AS sd_exit_layer,
    avg(token_match) AS mean_match, stddev_samp(token_match) AS sd_match, list(seed ORDER BY seed) AS which
FROM frontier
WHERE execution = 'real'
GROUP BY model, task_label, method, label, kv_policy, metric, dtype, device, batch_size, n
HAVING count(DISTINCT seed) > 1
ORDER BY model, task_label, method, label, kv_policy, n;
