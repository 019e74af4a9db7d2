-- Published: What did papers print, and what did our runs measure in its place?
-- comparable says how alike the settings are and differences what is known to differ: read both before the numbers. A
-- value of ours in another setting neither confirms nor refutes.
SELECT
    source, figure_or_table, method, setting, metric, value, our_value, our_ci_low, our_ci_high, our_n, unit,
    comparable,
    differences, our_model, our_params
FROM published
WHERE our_value IS NOT NULL
ORDER BY source, figure_or_table, method, setting, metric, published_id;
