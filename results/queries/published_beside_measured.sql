-- Published: Which values did papers report, and what did our runs measure in the same place?
-- Read comparable (similarity of the settings) and differences (known differences) before the numbers. Our value from a
-- different setting neither confirms nor refutes a published one. Models differ in their number of blocks: depths and
-- earliest exits are compared as shares of it, and our_value converts our depth to blocks of their model.
SELECT
    source, figure_or_table, method, setting, metric, value, our_value, our_ci_low, our_ci_high, our_n, unit,
    depth_share, our_depth_share, min_exit_share, our_min_exit_share, comparable,
    differences, our_model, our_params
FROM published
WHERE our_value IS NOT NULL
ORDER BY source, figure_or_table, method, setting, metric, published_id;
