-- Published: What did papers print, and what did our runs measure in its place?
-- comparable says how alike the settings are and differences what is known to differ: read both before the numbers. A
-- value of ours in another setting neither confirms nor refutes. Models differ in their number of blocks: depths and
-- earliest exits compare as shares of them, and our_value tells a depth of ours in blocks of their model.
SELECT
    source, figure_or_table, method, setting, metric, value, our_value, our_ci_low, our_ci_high, our_n, unit,
    depth_share, our_depth_share, min_exit_share, our_min_exit_share, comparable,
    differences, our_model, our_params
FROM published
WHERE our_value IS NOT NULL
ORDER BY source, figure_or_table, method, setting, metric, published_id;
