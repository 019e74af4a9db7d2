-- Cost and speed: Which speed-ups are larger than noise?
-- Full depth was timed against itself in the same session: aa_low to aa_high is the interval of a ratio whose true
-- value is 1. A method is faster or slower if its own 95% interval is beyond that interval and beyond 1. Not measurable: one of
-- the two intervals is wider than a factor of 10, because the machine was busy or there are very few documents.
-- is_other_length: answers are more than 5% shorter or longer than full depth's.
SELECT
    model, task_label, method, label, kv_policy, seed, speedup, speedup_low, speedup_high, aa_low, aa_high,
    CASE
        WHEN speed_status = 'not measurable' THEN 'not measurable now'
        WHEN inside_noise(speedup_low, speedup_high, aa_low, aa_high) THEN 'not to be told apart'
        WHEN speedup_low > 1 THEN 'faster' WHEN speedup_high < 1 THEN 'slower' ELSE 'not to be told apart'
    END AS verdict,
    is_other_length, timed_documents, timed_rounds
FROM frontier
WHERE (aa_low IS NOT NULL OR speed_status = 'not measurable') AND NOT is_full_depth
ORDER BY model, task_label, verdict, speedup DESC, method, label, kv_policy, seed, cell_id;
