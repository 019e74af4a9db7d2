-- How early full depth's tokens are settled, per model and task: from the largest probe of each, with half intervals.
SELECT
    s.model, s.task_label AS task, r.conditions AS setting, r.blocks, s.first_match, s.first_match_half, s.stable_from, s.stable_from_half,
    s.agreement_mid, s.agreement_mid_half, s.agreement_area, s.agreement_area_half, s.share_lost, s.share_lost_half, s.documents
FROM suitability AS s JOIN runs AS r USING (attempt_id)
WHERE NOT s.random_weights
QUALIFY row_number() OVER (PARTITION BY s.model, s.task_label, r.conditions ORDER BY s.n DESC, s.attempt_id DESC) = 1
ORDER BY s.agreement_area DESC, s.model, s.task_label, r.conditions;
