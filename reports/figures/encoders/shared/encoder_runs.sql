ran AS (
    SELECT f.*, count(*) OVER (PARTITION BY r.setting_id) AS beside
    FROM frontier AS f JOIN (SELECT attempt_id, setting_id, model_kind FROM runs) AS r USING (attempt_id)
    WHERE r.model_kind = 'encoder' AND NOT f.random_weights AND f.execution = 'real' AND f.value IS NOT NULL
),
-- Of a setting that was run several times (on other documents, in other batches) one run: that which was run beside most
-- others, of these by the most documents, of these the newest.
shown AS (
    FROM ran
    QUALIFY row_number() OVER (
        PARTITION BY model, task_label, method, params, kv_policy ORDER BY beside DESC, n DESC, attempt_id DESC
    ) = 1
),
