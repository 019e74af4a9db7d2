documents AS (  -- what a run chose; texts beyond a document's choices are none
    SELECT attempt_id, doc_key, bool_or(is_chosen AND is_right) AS right_chosen,
           bool_or(is_chosen AND full_is_chosen) AS same_chosen, count_if(is_right) / count(*) AS chance
    FROM choice_answers WHERE is_chosen IS NOT NULL AND NOT random_weights GROUP BY ALL
),
ran AS (
    SELECT f.attempt_id, f.model, f.task_label AS task, f.conditions AS setting, f.method, f.params, f.kv_policy,
           f.execution, f.blocks, f.is_full_depth, f.ideal_speedup_bytes, f.speedup, f.speedup_low, f.speedup_high, f.speed_status, f.aa_low, f.aa_high,
           f.timed_documents, (f.params ->> 'threshold')::DOUBLE AS threshold,
           concat_ws(' ', json_merge_patch(f.params, '{"threshold": null}'), f.kv_policy) AS line, c.n,
           count(*) OVER (PARTITION BY r.setting_id) AS beside
    FROM frontier AS f
    JOIN (SELECT attempt_id, setting_id FROM runs) AS r USING (attempt_id)
    JOIN (SELECT attempt_id, count(*) AS n FROM documents GROUP BY ALL) AS c USING (attempt_id)
),
-- A setting that was run several times (on other documents, with other seeds) is shown by one run: that which was run
-- beside most others, of these by the most documents, of these the newest.
shown AS (
    FROM ran
    QUALIFY row_number() OVER (
        PARTITION BY model, task, setting, method, params, kv_policy, execution
        ORDER BY beside DESC, n DESC, attempt_id DESC
    ) = 1
),
