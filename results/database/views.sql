-- The views: the public interface of queries. Tables may change with a version; a view's name and columns do not.
-- Every view shows the latest successful attempt at each cell, except `failures`. Blocks and exit layers are numbered
-- 1..L, positions start at 1, logarithms are natural.

CREATE OR REPLACE MACRO used_params(params, unused) AS
    CASE WHEN len(unused) > 0
        THEN json_merge_patch(params, to_json(MAP(unused, list_transform(unused, lambda name: NULL::VARCHAR))))
        ELSE params END;
COMMENT ON MACRO used_params IS 'Parameters (JSON) without those that have no effect given the others, such as a threshold that the rule
does not use.';

CREATE OR REPLACE MACRO inside_noise(low, high, floor_low, floor_high) AS
    coalesce(low <= greatest(1, floor_high) AND high >= least(1, floor_low), false);
COMMENT ON MACRO inside_noise IS 'Whether a speed-up with the interval low to high may be noise: it is not beyond both 1 and the interval of full
depth timed against itself. False without an interval.';

CREATE OR REPLACE MACRO is_measurable(low, high) AS
    coalesce(high <= 10 * low, true);
COMMENT ON MACRO is_measurable IS 'Whether an interval of a ratio is informative: its ends differ by at most a factor of 10, or there is no
interval.';

CREATE VIEW settings AS
WITH asked AS (
    SELECT *, count(*) OVER (PARTITION BY method) = 1 AS is_only
    FROM (SELECT DISTINCT method, used_params(params, unused_params) AS params FROM cell)
),
named AS (
    SELECT *, unnest(coalesce(nullif(json_keys(params), []), [NULL])) AS name FROM asked
),
valued AS (
    SELECT
        method, params, is_only, name, coalesce(params ->> ('$."' || name || '"'), 'null') AS spelled,
        regexp_replace(spelled, '^(-?[0-9]+)[.]0$', '\1') AS value,
        2 * count(*) OVER (PARTITION BY method, name, value) > count(*) OVER (PARTITION BY method, name) AS is_usual,
        count(*) FILTER (name <> 'kv_policy') OVER (PARTITION BY method, params) <= 2 AS are_few
    FROM named
),
shortened AS (
    SELECT
        method, params, name, spelled, 1 / count(*) OVER (PARTITION BY method, params) AS part,
        coalesce(string_agg(name || '=' || value, ', ' ORDER BY name <> 'threshold', name) FILTER (
            name = 'threshold' OR (name <> 'kv_policy' AND (
                NOT is_usual OR (is_only AND are_few AND value NOT IN ('0', 'none', 'false', 'null', '[]'))
            ))
        ) OVER (PARTITION BY method, params), '') AS short
    FROM valued
),
-- Distinguishes settings with the same short name: their values differ, or some have no value.
compared AS (
    SELECT
        *, min(spelled) OVER alike <> max(spelled) OVER alike
            OR count(*) OVER alike < round(sum(part) OVER (PARTITION BY method, short)) AS differs
    FROM shortened
    WINDOW alike AS (PARTITION BY method, short, name)
)
SELECT
    method, params, coalesce(nullif(concat_ws(
        ', ', nullif(short, ''), string_agg(name || '=' || spelled, ', ' ORDER BY name) FILTER (differs)
    ), ''), 'usual') AS label
FROM compared
GROUP BY method, params, short;
COMMENT ON VIEW settings IS 'One row per method and parameters in the database, with their label. The label lists the parameters that differ
from the value of most settings of the method, by name, the threshold first. For a method with one setting, it lists all parameters that are
switched on, if there are one or two. If several settings would have the same label, it also lists the parameters in which they differ. It
is ''usual'' if nothing is listed. No two settings of a method have the same label.';

CREATE VIEW run_names AS
SELECT
    m.name AS model, d.task, d.label AS task_label, c.method, coalesce(s.label, '') AS label,
    try_cast(used_params(c.params, c.unused_params) ->> '$.threshold' AS DOUBLE) AS threshold, c.kv_policy,
    c.seed, c.execution, c.random_weights, c.suite, a.cell_id, a.attempt_id,
    used_params(c.params, c.unused_params) AS params
FROM (
    SELECT cell_id, max(attempt_id) AS attempt_id FROM attempt WHERE status = 'ok' GROUP BY cell_id
) AS a
JOIN cell AS c USING (cell_id)
JOIN model_artifact AS m USING (model_id)
JOIN dataset_artifact AS d USING (data_id)
LEFT JOIN settings AS s
    ON s.method = c.method AND s.params = used_params(c.params, c.unused_params);
COMMENT ON VIEW run_names IS 'The columns with which every view begins, and params, with which it ends: one row per run (latest successful
attempt at a cell).';

CREATE VIEW parameters AS
SELECT
    n.* EXCLUDE (params, name), n.name, n.params ->> ('$."' || n.name || '"') AS value, try_cast(value AS DOUBLE) AS number, n.params
FROM (SELECT *, unnest(json_keys(params)) AS name FROM run_names) AS n;
COMMENT ON VIEW parameters IS 'One row per run and parameter of its method, except parameters that have no effect given the others.';

CREATE VIEW runs AS
SELECT
    n.* EXCLUDE (params), c.kind, d.split, d.documents, c.limited, m.kind AS model_kind, m.blocks, m.encoder_blocks, m.parameters,
    m.tokenizer_sha256, c.model_source, c.dtype, c.device, coalesce(c.identity ->> 'engine', 'lean') AS engine, c.batch_size,
    concat_ws(', ', c.dtype, c.device, 'batch ' || c.batch_size, nullif(coalesce(c.identity ->> 'engine', 'lean'), 'lean'),
        array_to_string(list_transform(
            from_json(c.identity -> 'device_map', '[["VARCHAR"]]'), lambda share: share[2] || ' blocks on ' || share[1]
        ), ', '), nullif(coalesce(c.identity ->> 'head_precision', 'exact') || ' head', 'exact head')) AS conditions,
    coalesce(c.identity ->> 'head_precision', 'exact') AS head_precision, (c.identity ->> 'batch_rows')::INTEGER AS batch_rows, c.generation, c.seeds, c.method_distribution, c.method_version,
    a.started_at, epoch(a.ended_at) - epoch(a.started_at) AS seconds, a.pass_cells, a.peak_rss_bytes,
    e.git_commit AS commit, e.git_dirty AS dirty, h.cpu, h.gpu, h.threads, c.setting_id, a.comparable_id,
    coalesce(c.full_depth_cell_id, CASE WHEN c.kind = 'quality' THEN c.cell_id END) AS full_depth_cell_id,
    f.attempt_id AS full_depth_attempt_id,
    c.full_depth_cell_id IS NULL AND c.kind = 'quality' AS is_full_depth, c.identity -> 'record' AS record, c.identity -> 'device_map' AS device_map,
    c.not_applied, (c.conformance ->> 'verdict') = 'conforms' AS conforms,
    CASE WHEN m.kind = 'seq2seq' THEN 'gated' ELSE coalesce(c.generation ->> 'first_token', 'full') END AS first_token,
    n.params
FROM run_names AS n
JOIN attempt AS a USING (attempt_id)
JOIN cell AS c ON c.cell_id = n.cell_id
JOIN model_artifact AS m USING (model_id)
JOIN dataset_artifact AS d USING (data_id)
JOIN environment AS e USING (env_id)
JOIN hardware AS h USING (hw_id)
LEFT JOIN (
    SELECT cell_id, max(attempt_id) AS attempt_id FROM attempt WHERE status = 'ok' GROUP BY cell_id
) AS f ON f.cell_id = coalesce(c.full_depth_cell_id, CASE WHEN c.kind = 'quality' THEN c.cell_id END);
COMMENT ON VIEW runs IS 'One row per run, with its machine, software and time.';

CREATE VIEW failures AS
SELECT
    m.name AS model, d.task, d.label AS task_label, c.method, coalesce(s.label, '') AS label,
    try_cast(used_params(c.params, c.unused_params) ->> '$.threshold' AS DOUBLE) AS threshold, c.kv_policy, c.seed, c.execution,
    c.random_weights, c.suite, a.cell_id, a.attempt_id, c.kind, a.status, a.reason, a.started_at,
    epoch(a.ended_at) - epoch(a.started_at) AS seconds, a.exit_code, a.signal, a.log_tail,
    (c.conformance ->> 'verdict') = 'conforms' AS conforms, used_params(c.params, c.unused_params) AS params
FROM attempt AS a
JOIN cell AS c USING (cell_id)
JOIN model_artifact AS m USING (model_id)
JOIN dataset_artifact AS d USING (data_id)
LEFT JOIN settings AS s ON s.method = c.method AND s.params = used_params(c.params, c.unused_params)
WHERE a.status <> 'ok' AND a.attempt_id IN (
    SELECT max(attempt_id) FROM attempt JOIN cell USING (cell_id)
    GROUP BY setting_id, kind, method, params, kv_policy, identity -> '$.calibration', identity -> '$.record'
);
COMMENT ON VIEW failures IS 'One row per cell whose latest attempt did not succeed. Cells that differ only in the version of method or
engine, or in the cell that they were fitted or replayed on, count as one.';

CREATE VIEW metric_values AS
SELECT
    n.* EXCLUDE (params), c.kind, v.metric, v.metric_version, v.value, v.ci_low, v.ci_high, v.ci_method, v.n, v.role,
    v.lower_is_better, v.scale_low, v.scale_high, v.scored_at,
    v.scored_at = max(v.scored_at) OVER (PARTITION BY v.attempt_id, v.metric) AS is_current, n.params
FROM metric AS v
JOIN run_names AS n USING (attempt_id)
JOIN cell AS c ON c.cell_id = n.cell_id;
COMMENT ON VIEW metric_values IS 'One row per run, metric and version of the metric.';

CREATE VIEW frontier AS
WITH current_metric AS (
    SELECT * FROM metric QUALIFY scored_at = max(scored_at) OVER (PARTITION BY attempt_id, metric)
),
task_metric AS (
    SELECT * FROM metric WHERE role IN ('headline', 'task')
),
-- Of the latest metric version only: an older one may have metrics that no longer exist.
headline AS (
    SELECT * FROM task_metric WHERE role = 'headline'
    QUALIFY row_number() OVER (PARTITION BY attempt_id ORDER BY scored_at DESC, ordinal) = 1
),
shared AS (
    SELECT
        attempt_id, max(n) FILTER (role = 'depth') AS n,
        max(value) FILTER (metric = 'mean_exit_layer') AS mean_exit_layer,
        max(value) FILTER (metric = 'mean_blocks_run') AS mean_blocks_run,
        max(value) FILTER (metric = 'token_match') AS token_match,
        max(value) FILTER (metric = 'ideal_speedup_bytes') AS ideal_speedup_bytes,
        max(value) FILTER (metric = 'ideal_speedup_flops') AS ideal_speedup_flops,
        max(value) FILTER (metric = 'format_logprob_gap') AS format_logprob_gap,
        max(value) FILTER (metric = 'format_choice_gap') AS format_choice_gap,
        max(value) FILTER (metric IN ('format_choice_match', 'format_token_match')) AS format_match
    FROM current_metric GROUP BY attempt_id
),
newest AS (
    SELECT max(a.attempt_id) AS attempt_id
    FROM attempt AS a JOIN cell AS c USING (cell_id)
    WHERE a.status = 'ok' AND c.kind IN ('quality', 'replay')
    GROUP BY c.setting_id, c.kind, c.method, c.params, c.kv_policy
),
timed AS (
    SELECT
        c.setting_id, c.method, c.method_revision, c.params, c.kv_policy, c.identity ->> 'fit_cell_id' AS fit_cell_id,
        a.hw_id, a.attempt_id
    FROM attempt AS a JOIN cell AS c USING (cell_id)
    WHERE a.status = 'ok' AND c.kind = 'timing' AND (c.identity -> 'record') IS NULL
),
latest_timed AS (
    SELECT t.*
    FROM timed AS t
    JOIN (SELECT setting_id, arg_max(hw_id, attempt_id) AS hw_id FROM timed GROUP BY setting_id)
        USING (setting_id, hw_id)
    QUALIFY row_number() OVER (
        PARTITION BY setting_id, method, method_revision, params, kv_policy, fit_cell_id ORDER BY attempt_id DESC
    ) = 1
),
read AS (
    SELECT
        t.setting_id, t.method, t.method_revision, t.params, t.kv_policy, t.fit_cell_id, t.attempt_id, t.hw_id,
        max(v.value) FILTER (v.metric = 'speedup') AS speedup,
        max(v.ci_low) FILTER (v.metric = 'speedup') AS speedup_low,
        max(v.ci_high) FILTER (v.metric = 'speedup') AS speedup_high,
        max(v.ci_low) FILTER (v.metric = 'aa_speedup') AS aa_low,
        max(v.ci_high) FILTER (v.metric = 'aa_speedup') AS aa_high,
        max(v.value) FILTER (v.metric = 'full_ms_per_token') / max(v.value) FILTER (v.metric = 'ms_per_token')
            AS speedup_per_token,
        max(v.value) FILTER (v.metric = 'tokens_per_request') AS tokens_per_request,
        max(v.value) FILTER (v.metric = 'full_tokens_per_request') AS full_tokens_per_request,
        max(v.value) FILTER (v.metric = 'speedup_decode') AS speedup_decode,
        is_measurable(max(v.ci_low) FILTER (v.metric = 'speedup_decode'), max(v.ci_high) FILTER (v.metric = 'speedup_decode'))
            AS is_decode_measured,
        max(v.value) FILTER (v.metric = 'ideal_speedup_decode') AS ideal_speedup_decode,
        max(v.value) FILTER (v.metric = 'timed_documents')::BIGINT AS timed_documents,
        max(v.value) FILTER (v.metric = 'timed_rounds')::BIGINT AS timed_rounds,
        max(v.value) FILTER (v.metric = 'joules_per_token') AS joules_per_token,
        max(v.value) FILTER (v.metric = 'full_joules_per_token') AS full_joules_per_token,
        max(v.value) FILTER (v.metric = 'net_joules_per_token') AS net_joules_per_token,
        max(v.value) FILTER (v.metric = 'full_net_joules_per_token') AS full_net_joules_per_token,
        max(v.value) FILTER (v.metric = 'energy_ratio') AS energy_ratio,
        max(v.ci_low) FILTER (v.metric = 'energy_ratio') AS energy_ratio_low,
        max(v.ci_high) FILTER (v.metric = 'energy_ratio') AS energy_ratio_high,
        max(v.ci_low) FILTER (v.metric = 'aa_energy_ratio') AS aa_energy_low,
        max(v.ci_high) FILTER (v.metric = 'aa_energy_ratio') AS aa_energy_high
    FROM latest_timed AS t JOIN current_metric AS v USING (attempt_id)
    GROUP BY ALL
),
-- A speed-up that is not measurable becomes NULL, so that it is neither drawn nor ranked.
speed AS (
    SELECT
        * EXCLUDE (speedup, speedup_low, speedup_high, aa_low, aa_high, speedup_per_token, speedup_decode),
        CASE WHEN is_measured THEN speedup END AS speedup, CASE WHEN is_measured THEN speedup_low END AS speedup_low,
        CASE WHEN is_measured THEN speedup_high END AS speedup_high, CASE WHEN is_measured THEN aa_low END AS aa_low,
        CASE WHEN is_measured THEN aa_high END AS aa_high,
        CASE WHEN is_measured AND is_decode_measured THEN speedup_per_token END AS speedup_per_token,
        CASE WHEN is_measured AND is_decode_measured THEN speedup_decode END AS speedup_decode
    FROM (SELECT *, is_measurable(speedup_low, speedup_high) AND is_measurable(aa_low, aa_high) AS is_measured FROM read)
)
SELECT
    r.model, r.task, r.task_label, r.method, r.label, r.threshold, r.kv_policy, r.seed, r.execution, r.random_weights, r.suite, r.cell_id,
    r.attempt_id, r.limited, r.dtype, r.device, r.batch_size, r.conditions, r.model_kind, r.blocks, coalesce(v.metric, full_headline.metric) AS metric,
    coalesce(v.lower_is_better, full_headline.lower_is_better) AS lower_is_better, v.value, v.ci_low, v.ci_high, f.value AS full_value,
    v.value - f.value AS delta, CASE WHEN v.lower_is_better THEN f.value - v.value ELSE v.value - f.value END AS gain, shared.mean_exit_layer,
    shared.mean_blocks_run,
    CASE WHEN r.is_full_depth THEN 1.0 ELSE s.speedup END AS speedup,
    CASE WHEN r.is_full_depth THEN 1.0 ELSE s.speedup_low END AS speedup_low,
    CASE WHEN r.is_full_depth THEN 1.0 ELSE s.speedup_high END AS speedup_high, s.aa_low, s.aa_high,
    CASE WHEN s.attempt_id IS NULL THEN 'not timed' WHEN s.is_measured THEN 'timed' ELSE 'not measurable' END AS speed_status,
    s.tokens_per_request, s.full_tokens_per_request,
    abs(s.tokens_per_request / s.full_tokens_per_request - 1) > 0.05 AS is_other_length,
    CASE WHEN r.is_full_depth THEN 1.0 ELSE s.speedup_per_token END AS speedup_per_token,
    CASE WHEN r.is_full_depth THEN 1.0 ELSE s.speedup_decode END AS speedup_decode,
    CASE WHEN r.is_full_depth THEN 1.0 ELSE s.ideal_speedup_decode END AS ideal_speedup_decode,
    CASE WHEN NOT r.is_full_depth THEN s.speedup_decode / s.ideal_speedup_decode END AS realised_fraction,
    s.timed_documents, s.timed_rounds, s.joules_per_token, s.full_joules_per_token, s.net_joules_per_token, s.full_net_joules_per_token,
    s.energy_ratio, s.energy_ratio_low, s.energy_ratio_high, s.aa_energy_low, s.aa_energy_high,
    shared.ideal_speedup_bytes, shared.ideal_speedup_flops, shared.token_match,
    full_depth.format_logprob_gap, full_depth.format_choice_gap, full_depth.format_match,
    coalesce(v.n, shared.n) AS n, r.is_full_depth, s.attempt_id AS timing_attempt_id, h.cpu AS timing_cpu, h.gpu AS timing_gpu, r.conforms,
    r.setting_id, r.full_depth_cell_id, r.full_depth_attempt_id, r.params
FROM runs AS r
JOIN newest ON newest.attempt_id = r.attempt_id
JOIN cell AS c ON c.cell_id = r.cell_id
LEFT JOIN shared ON shared.attempt_id = r.attempt_id
LEFT JOIN shared AS full_depth ON full_depth.attempt_id = r.full_depth_attempt_id
LEFT JOIN headline AS v ON v.attempt_id = r.attempt_id
LEFT JOIN headline AS full_headline ON full_headline.attempt_id = r.full_depth_attempt_id
LEFT JOIN task_metric AS f
    ON f.attempt_id = r.full_depth_attempt_id AND f.metric = coalesce(v.metric, full_headline.metric)
    AND f.metric_version = coalesce(v.metric_version, full_headline.metric_version)
LEFT JOIN speed AS s
    ON c.kind = 'quality' AND s.setting_id = c.setting_id AND s.method = c.method
    AND s.method_revision = c.method_revision AND s.params = c.params AND s.kv_policy IS NOT DISTINCT FROM c.kv_policy
    AND s.fit_cell_id IS NOT DISTINCT FROM (c.identity ->> 'fit_cell_id')
LEFT JOIN hardware AS h ON h.hw_id = s.hw_id;
COMMENT ON VIEW frontier IS 'Quality against speed: one row per quality or replay run. Of runs that differ only in the version of method or
engine, or in the cell that they were fitted or replayed on, only the newest is listed.';

CREATE VIEW device_readings AS
SELECT n.* EXCLUDE (params), d.* EXCLUDE (attempt_id), n.params FROM device_sample AS d JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW device_readings IS 'One row per reading of a device around a round of a timing run, never during a decode.';

CREATE VIEW energy_readings AS
SELECT
    n.* EXCLUDE (params), e.doc_key, e.round, e.position, CASE WHEN e.twin THEN 'twin' ELSE e.arm END AS arm, e.domain, d.is_counted,
    e.energy_uj / 1e6 AS joules, e.wall_ns / 1e6 AS ms, 1e3 * e.energy_uj / nullif(e.wall_ns, 0) AS power_w,
    1e3 * d.idle_uj / nullif(d.idle_ns, 0) AS idle_power_w, joules - idle_power_w * ms / 1e3 AS net_joules,
    d.update_ns / 1e6 AS update_ms, n.params
FROM energy_sample AS e
JOIN energy_domain AS d USING (attempt_id, domain)
JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW energy_readings IS 'One row per timed decode and energy counter of the machine; none if the machine has no counters. A
counter includes everything that ran on its processors or GPU. timings and frontier use the sum of the counters with is_counted.';

CREATE VIEW timings AS
WITH read AS (
    SELECT
        attempt_id, doc_key, CASE WHEN twin THEN 'twin' ELSE arm END AS arm, phase, avg(n_tokens) AS tokens, median(wall_ns) / 1e6 AS ms,
        median(cpu_ns) / 1e6 AS cpu_ms, count(*) AS readings
    FROM timing_sample GROUP BY ALL
),
decodes AS (
    SELECT
        attempt_id, e.doc_key, CASE WHEN e.twin THEN 'twin' ELSE e.arm END AS arm, sum(e.energy_uj) / 1e6 AS joules,
        joules - sum(e.wall_ns::DOUBLE * d.idle_uj / nullif(d.idle_ns, 0)) / 1e6 AS net_joules
    FROM energy_sample AS e JOIN energy_domain AS d USING (attempt_id, domain)
    WHERE d.is_counted GROUP BY attempt_id, e.doc_key, e.round, e.position, e.arm, e.twin
),
spent AS (
    SELECT attempt_id, doc_key, arm, 'total' AS phase, avg(joules) AS joules, avg(net_joules) AS net_joules FROM decodes GROUP BY ALL
)
SELECT
    n.* EXCLUDE (params), r.doc_key, r.arm, r.phase, r.tokens, r.ms, r.cpu_ms, r.readings, r.ms / r.tokens AS ms_per_token,
    f.ms AS full_ms, f.ms / r.ms AS speedup, s.joules, s.joules / r.tokens AS joules_per_token, s.net_joules,
    s.net_joules / r.tokens AS net_joules_per_token, fs.joules AS full_joules, fs.joules / nullif(s.joules, 0) AS energy_ratio, n.params
FROM read AS r
JOIN run_names AS n ON n.attempt_id = r.attempt_id
LEFT JOIN read AS f
    ON f.attempt_id = r.attempt_id AND f.doc_key = r.doc_key AND f.phase = r.phase AND f.arm = 'full'
LEFT JOIN spent AS s
    ON s.attempt_id = r.attempt_id AND s.doc_key = r.doc_key AND s.phase = r.phase AND s.arm = r.arm
LEFT JOIN spent AS fs
    ON fs.attempt_id = r.attempt_id AND fs.doc_key = r.doc_key AND fs.phase = r.phase AND fs.arm = 'full';
COMMENT ON VIEW timings IS 'One row per timing run, document (or batch, named by its first document), arm and phase: measured times and, for
whole requests, energy. Over a run''s documents, in the arm method and the phase total, sum(full_ms) / sum(ms) is frontier''s speedup, and
sum(full_joules) / sum(joules) its energy_ratio.';

CREATE VIEW latest_scores AS
SELECT
    s.attempt_id, s.doc_key, coalesce(r.scores, s.scores) AS scores, coalesce(r.statistics, s.statistics) AS statistics
FROM sample AS s
LEFT JOIN (
    SELECT attempt_id, doc_key, arg_max(scores, scored_at) AS scores, arg_max(statistics, scored_at) AS statistics
    FROM sample_rescore GROUP BY attempt_id, doc_key
) AS r ON r.attempt_id = s.attempt_id AND r.doc_key = s.doc_key;
COMMENT ON VIEW latest_scores IS 'One row per document of a quality run: its scores, and its contributions to the metrics, by the latest version
of the metrics.';

CREATE VIEW qc AS
WITH clocks AS (
    SELECT attempt_id, count(*) AS readings,
        count(*) FILTER (apart_ns > greatest(0.02 * wall_ns, 200_000)) AS apart,
        max(apart_ns / wall_ns) FILTER (apart_ns > greatest(0.02 * wall_ns, 200_000)) AS worst
    FROM (SELECT *, abs(wall_ns - device_ns) AS apart_ns FROM timing_sample WHERE device_ns IS NOT NULL)
    GROUP BY attempt_id
),
outputs AS (
    SELECT a.cell_id, a.attempt_id, a.hw_id, e.packages ->> 'pyarrow' AS writer, f.name, f.sha256
    FROM attempt AS a
    JOIN attempt_file AS f USING (attempt_id)
    JOIN environment AS e USING (env_id)
    WHERE a.status = 'ok' AND f.name IN ('samples.parquet', 'tokens.parquet', 'probe.parquet', 'scores.parquet')
        -- Log-probabilities of given texts differ in their last bits if the other rows of their batch differ.
        AND NOT (f.name = 'tokens.parquet' AND attempt_id IN (SELECT attempt_id FROM attempt_file WHERE name = 'choices.parquet'))
),
repeated AS (
    SELECT l.attempt_id, l.hw_id = o.hw_id AS same_machine, string_agg(DISTINCT l.name, ', ' ORDER BY l.name) AS names,
        count(DISTINCT o.attempt_id) AS others
    FROM outputs AS l
    JOIN outputs AS o ON o.cell_id = l.cell_id AND o.attempt_id <> l.attempt_id AND o.name = l.name
        AND o.writer IS NOT DISTINCT FROM l.writer AND o.sha256 <> l.sha256
    SEMI JOIN run_names AS n ON n.attempt_id = l.attempt_id
    GROUP BY ALL
),
usual_clock AS (
    SELECT a.hw_id, d.device, median(d.clock_mhz) AS mhz
    FROM device_sample AS d JOIN attempt AS a USING (attempt_id)
    WHERE d.moment = 'end' GROUP BY ALL
),
slow AS (
    SELECT d.attempt_id, count(*) AS readings, min(d.clock_mhz) AS lowest, any_value(u.mhz) AS usual
    FROM device_sample AS d
    JOIN attempt AS a USING (attempt_id)
    JOIN usual_clock AS u USING (hw_id, device)
    WHERE d.moment = 'end' AND d.clock_mhz < 0.9 * u.mhz GROUP BY d.attempt_id
),
throttled AS (
    SELECT attempt_id, count(*) AS readings, string_agg(DISTINCT throttle, '; ' ORDER BY throttle) AS reasons
    FROM device_sample WHERE throttle LIKE '%slowdown%' OR throttle LIKE '%cap%' OR throttle LIKE '%brake%' GROUP BY attempt_id
),
untraced AS (
    SELECT s.attempt_id, count(*) AS documents
    FROM sample AS s
    JOIN run_names AS n USING (attempt_id)
    JOIN cell AS c ON c.cell_id = n.cell_id AND c.kind = 'quality'
    LEFT JOIN (
        SELECT attempt_id, doc_key, sum(tokens) AS tokens FROM (
            SELECT attempt_id, doc_key, len(exit_layer) AS tokens FROM document_exit
            UNION ALL
            SELECT attempt_id, doc_key, count(*) FROM token_exit
            SEMI JOIN (FROM choice_answer WHERE is_chosen) AS chosen USING (attempt_id, doc_key, choice)
            WHERE choice IS NOT NULL GROUP BY ALL
        ) GROUP BY ALL
    ) AS t USING (attempt_id, doc_key)
    WHERE coalesce(t.tokens, 0) <> s.n_output GROUP BY s.attempt_id
),
shortened AS (
    SELECT v.attempt_id, v.metric, v.value, v.n, coalesce(c.generation ->> 'truncate' = 'drop', false) AS asked,
        c.generation ->> 'max_prompt_tokens' IS NOT NULL AS is_bounded
    FROM metric AS v
    JOIN attempt AS a USING (attempt_id)
    JOIN cell AS c USING (cell_id)
    WHERE v.metric IN ('documents_dropped', 'documents_unscorable', 'prompts_truncated')
),
depths AS (
    SELECT a.attempt_id, c.kind, c.full_depth_cell_id, c.method, c.method_revision, c.params, c.kv_policy, m.blocks,
        c.identity ->> 'fit_cell_id' AS fit_cell_id, v.value, v.ci_low, v.ci_high
    FROM run_names AS a
    JOIN cell AS c USING (cell_id)
    JOIN model_artifact AS m USING (model_id)
    JOIN metric AS v ON v.attempt_id = a.attempt_id AND v.metric = 'mean_exit_layer'
    WHERE c.kind IN ('quality', 'replay') AND c.full_depth_cell_id IS NOT NULL
),
-- After an early exit, real decodes read other keys, values and tokens than a probe: that changes depths by tenths of a block.
replayed AS (
    SELECT unnest([q.attempt_id, s.attempt_id]) AS attempt_id, q.value AS real_depth, s.value AS simulated_depth, q.blocks
    FROM depths AS q
    JOIN depths AS s USING (full_depth_cell_id, method, method_revision, params)
    WHERE q.kind = 'quality' AND s.kind = 'replay' AND q.kv_policy IS NOT DISTINCT FROM s.kv_policy
        AND q.fit_cell_id IS NOT DISTINCT FROM s.fit_cell_id AND abs(q.value - s.value) > greatest(1, q.blocks / 8)
        AND NOT coalesce(q.ci_low <= s.ci_high AND s.ci_low <= q.ci_high, false)
),
-- Signs of other processes on the cores. ran: processor time of all threads over elapsed time; on an idle machine it is at least 1.
-- stalled: share of readings above 1.5 times the median of their document and arm.
readings AS (
    SELECT attempt_id, sum(cpu_ns) / sum(wall_ns) AS ran, count(*) FILTER (wall_ns > 1.5 * typical_ns) / count(*) AS stalled
    FROM timing_sample JOIN (
        SELECT attempt_id, doc_key, arm, twin, median(wall_ns) AS typical_ns FROM timing_sample WHERE phase = 'total' GROUP BY ALL
    ) USING (attempt_id, doc_key, arm, twin)
    WHERE phase = 'total' GROUP BY attempt_id HAVING count(*) >= 20
),
loads AS (SELECT attempt_id, avg(load_average) AS load FROM device_sample WHERE load_average IS NOT NULL GROUP BY attempt_id),
unmeasured AS (
    SELECT attempt_id, string_agg(printf('%s is not measurable now (%.3g to %.3g)', metric, ci_low, ci_high), ', ' ORDER BY metric) AS names
    FROM metric WHERE metric IN ('speedup', 'speedup_decode', 'aa_speedup') AND NOT is_measurable(ci_low, ci_high)
        AND n >= 5  -- with fewer documents intervals are this wide on any machine
    GROUP BY attempt_id
),
busy AS (
    SELECT attempt_id, concat_ws('; ', 'the machine was busy',
        CASE WHEN l.load IS NOT NULL THEN printf('load %.1f on %d cores', l.load, h.cores) END,
        CASE WHEN r.ran < 0.9 AND c.device = 'cpu' THEN printf('the process used the processor for %.0f%% of the measured time', 100 * r.ran) END,
        CASE WHEN r.stalled > 0.1 THEN printf(
            '%.0f%% of the readings took more than 1.5 times the median of their document', 100 * r.stalled) END,
        u.names) AS message
    FROM attempt AS a
    JOIN cell AS c USING (cell_id)
    JOIN hardware AS h USING (hw_id)
    LEFT JOIN readings AS r USING (attempt_id)
    LEFT JOIN loads AS l USING (attempt_id)
    LEFT JOIN unmeasured AS u USING (attempt_id)
    WHERE c.kind = 'timing'
        -- A load does no harm to a single thread that was never held up.
        AND ((l.load > 1.25 * h.cores AND NOT coalesce(h.threads = 1 AND r.ran >= 0.95, false)) OR (r.ran < 0.9 AND c.device = 'cpu') OR r.stalled > 0.1 OR u.names IS NOT NULL)
),
-- far: even an interval of twice the width excludes 1 (on the logarithmic scale, where it is symmetric), which is hardly chance.
floors AS (
    SELECT attempt_id, n.suite, a.hw_id, v.value, v.ci_low, v.ci_high, NOT 1 BETWEEN v.ci_low AND v.ci_high AS missed,
        missed AND abs(ln(v.value)) > ln(v.ci_high / v.ci_low) AS far
    FROM run_names AS n JOIN attempt AS a USING (attempt_id) JOIN metric AS v USING (attempt_id)
    WHERE v.metric = 'aa_speedup' AND v.ci_low > 0 AND attempt_id NOT IN (SELECT attempt_id FROM busy)
),
-- chance: probability that at least this many 95% intervals miss their true value (binomial).
missed_floors AS (
    SELECT attempt_id, suite, intervals, missed, sum(exp(
        lgamma(intervals + 1) - lgamma(k + 1) - lgamma(intervals - k + 1) + k * ln(0.05) + (intervals - k) * ln(0.95))) AS chance
    FROM (SELECT *, unnest(range(missed, intervals + 1)) AS k FROM (
        SELECT suite, count(*) AS intervals, count(*) FILTER (missed) AS missed,
            arg_max(attempt_id, abs(ln(value))) FILTER (missed AND NOT far) AS attempt_id
        FROM floors GROUP BY suite, hw_id
    ) WHERE attempt_id IS NOT NULL)
    GROUP BY ALL
),
-- Full depth's headline metric if it has a scale, which ends at 100 (others have Student's t, or no interval). An error rate has its
-- floor at 100.
full_scores AS (
    SELECT attempt_id, v.metric, CASE WHEN v.lower_is_better THEN 100 - v.value ELSE v.value END AS above_floor, v.value, v.ci_low, v.ci_high
    FROM run_names AS n JOIN cell AS c USING (cell_id) JOIN metric AS v USING (attempt_id)
    WHERE c.kind = 'quality' AND c.full_depth_cell_id IS NULL AND NOT n.random_weights AND v.role = 'headline'
    QUALIFY row_number() OVER (PARTITION BY attempt_id ORDER BY v.scored_at DESC, v.ordinal) = 1
        AND v.ci_method NOT LIKE 'Student%'
),
-- Accuracy by chance: of a choice drawn at random, or of the most frequent label.
guesses AS (
    SELECT attempt_id, 100 * avg(share) AS chance, 'choosing at random' AS how, 'another prompt (exitbench show-prompts, num_fewshot, chat_template)' AS remedy
    FROM (
        SELECT attempt_id, avg(is_right::INT) AS share FROM choice_answer SEMI JOIN full_scores USING (attempt_id)
        WHERE is_right IS NOT NULL GROUP BY attempt_id, doc_key
    ) GROUP BY attempt_id
    UNION ALL
    SELECT attempt_id, 100 * max(n) / sum(n), 'always giving the most frequent label', 'training on the task'
    FROM (
        SELECT attempt_id, gold, count(DISTINCT doc_key) AS n FROM sequence_block SEMI JOIN full_scores USING (attempt_id)
        WHERE label_id IS NOT NULL GROUP BY ALL
    ) GROUP BY attempt_id
),
-- Only for scores that are means of documents that are right or wrong.
guessed AS (
    SELECT f.*, g.chance, g.how, g.remedy
    FROM full_scores AS f
    JOIN guesses AS g USING (attempt_id)
    JOIN latest_scores AS s USING (attempt_id)
    GROUP BY ALL
    HAVING bool_and((s.scores ->> f.metric)::DOUBLE IN (0, 100)) AND abs(avg((s.scores ->> f.metric)::DOUBLE) - f.value) < 1e-6
),
cut AS (
    SELECT attempt_id, count(*) AS answers, count(*) FILTER (s.stop_reason = 'length') AS cut, any_value(c.generation ->> 'max_new_tokens') AS most
    FROM run_names AS n JOIN cell AS c USING (cell_id) JOIN sample AS s USING (attempt_id)
    WHERE c.kind = 'quality' AND c.full_depth_cell_id IS NULL AND NOT n.random_weights
    GROUP BY attempt_id HAVING 2 * cut > answers
),
findings AS (
    SELECT attempt_id, 'clocks_disagree' AS rule, 2 AS severity, printf(
        'wall clock and device clock differ by more than 2%% and 0.2 ms in %d of %d timed phases, by up to %.1f%%', apart,
        readings, 100 * worst) AS message
    FROM clocks WHERE apart > 0
    UNION ALL
    SELECT attempt_id, 'busy_machine', 2, message FROM busy
    UNION ALL
    SELECT attempt_id, 'not_repeatable', CASE WHEN same_machine THEN 3 ELSE 1 END, printf(
        '%s differs from that of %d other attempt(s) at the same cell on %s', names, others,
        CASE WHEN same_machine THEN 'the same machine' ELSE 'another machine' END)
    FROM repeated
    UNION ALL
    SELECT attempt_id, 'noise_floor', CASE WHEN abs(value - 1) > 0.05 THEN 2 ELSE 1 END, printf(
        'full depth''s time over its own is not 1: %.4f, 95%% interval %.4f to %.4f', value, ci_low, ci_high)
    FROM floors WHERE far
    UNION ALL
    SELECT attempt_id, 'noise_floor_coverage', CASE WHEN chance < 0.01 THEN 2 ELSE 1 END, printf(
        'of %d intervals of full depth against itself in suite %s on this machine, %d do not contain 1: %s', intervals, suite, missed,
        CASE WHEN chance < 0.01 THEN 'more than by chance' ELSE 'by chance one of 20 misses it' END)
    FROM missed_floors
    UNION ALL
    SELECT attempt_id, 'few_timed_documents', 1, printf('the speed-up is of %d documents (or batches of them), fewer than 20', n)
    FROM metric WHERE metric = 'speedup' AND n < 20
    UNION ALL
    SELECT attempt_id, 'coarse_energy', 1, printf(
        'energy counters change only %.1f times in a timed decode: energy_ratio is less precise than times', value)
    FROM metric WHERE metric = 'energy_updates' AND value < 10
    UNION ALL
    SELECT attempt_id, 'realised_above_ideal', 1, printf(
        'decoding is %.2f times as fast [%.2f, %.2f], %.0f%% of what its work allows (%.2f): the cost model leaves something out here',
        d.value, d.ci_low, d.ci_high, 100 * d.value / i.value, i.value)
    FROM metric AS d JOIN metric AS i USING (attempt_id)
    WHERE d.metric = 'speedup_decode' AND i.metric = 'ideal_speedup_decode' AND d.ci_low > 1.05 * i.value
        AND attempt_id NOT IN (SELECT attempt_id FROM busy)
    UNION ALL
    SELECT attempt_id, 'throttled', 3, printf('the clock was throttled at %d readings: %s', readings, reasons) FROM throttled
    UNION ALL
    SELECT attempt_id, 'slow_clock', 2, printf(
        'the clock was as low as %.0f MHz after %d round(s); usual on this machine: %.0f MHz', lowest, readings, usual)
    FROM slow
    UNION ALL
    SELECT attempt_id, 'trace_incomplete', 3, printf(
        'the number of traced tokens differs from the answer''s in %d document(s)', documents)
    FROM untraced
    UNION ALL
    SELECT n.attempt_id, 'not_conforming', 3, 'the method breaks its contract: ' || coalesce(
        array_to_string(try_cast(c.conformance -> 'problems' AS VARCHAR[]), '; '), 'no details recorded')
    FROM run_names AS n JOIN cell AS c USING (cell_id) WHERE c.conformance ->> 'verdict' = 'fails'
    UNION ALL
    SELECT attempt_id, 'replay_differs', 2, printf(
        'tokens exit after %.2f of %d blocks in the real decode, but after %.2f in the replay: the replay does not predict the real decode',
        real_depth, blocks, simulated_depth)
    FROM replayed
    UNION ALL
    SELECT attempt_id, 'near_floor', 2, printf(
        'full depth scores %.1f of 100 (%s): this close to the floor, no loss can be detected. Read answers (exitbench show) and prompts (exitbench show-prompts); '
        'try chat_template = true (chat models), system, num_fewshot or a larger max_new_tokens', value, metric)
    FROM full_scores ANTI JOIN guessed USING (attempt_id) WHERE above_floor < 5
    UNION ALL
    SELECT attempt_id, 'near_floor', 2, printf(
        'full depth scores %.1f (%s), 95%% interval %.1f to %.1f, and %s scores %.1f: it is not shown to be better than guessing, so no loss can be detected. '
        'Try more documents, %s, or another model', value, metric, ci_low, ci_high, how, chance, remedy)
    FROM guessed WHERE ci_low <= chance
    UNION ALL
    SELECT attempt_id, 'cut_by_length', 2, printf(
        '%d of %d answers of full depth are cut at max_new_tokens = %s: scores are those of truncated answers. Raise it, or make answers end earlier: '
        'chat_template = true (chat models), system, stop', cut, answers, most)
    FROM cut
    UNION ALL
    SELECT attempt_id, 'dirty_commit', 1, 'tracked files differed from commit ' || coalesce(e.git_commit[:12], 'unknown')
    FROM attempt JOIN environment AS e USING (env_id) WHERE e.git_dirty
    UNION ALL
    SELECT attempt_id, 'random_weights', 1, 'the weights were never trained: its scores and depths are meaningless'
    FROM run_names WHERE random_weights
    UNION ALL
    SELECT n.attempt_id, 'limited', 1, 'only a subset of the documents was used: ' || d.documents
    FROM run_names AS n JOIN cell AS c ON c.cell_id = n.cell_id JOIN dataset_artifact AS d USING (data_id) WHERE c.limited
    UNION ALL
    SELECT n.attempt_id, 'generation_not_applied', 2,
        'not decoded with the checkpoint''s own generation settings: ' || left(c.not_applied::VARCHAR, 200)
    FROM run_names AS n JOIN cell AS c ON c.cell_id = n.cell_id WHERE c.kind = 'quality' AND c.not_applied IS NOT NULL
    UNION ALL
    SELECT attempt_id, metric, CASE WHEN metric = 'prompts_truncated' OR metric = 'documents_dropped' AND asked THEN 1 ELSE 2 END, printf(
        CASE WHEN metric = 'prompts_truncated' AND is_bounded THEN '%.0f of %d prompts are truncated to max_prompt_tokens'
        WHEN metric = 'prompts_truncated' THEN '%.0f of %d prompts are truncated to what the model can read'
        WHEN metric = 'documents_unscorable'
        THEN '%.0f of %d documents are excluded: one of their texts has no token to score, or more than the model can read'
        WHEN asked THEN '%.0f of %d documents are excluded: their prompts are longer than max_prompt_tokens'
        ELSE '%.0f of %d documents are excluded: prompt and answer do not fit the model''s positions' END, value, n)
    FROM shortened
)
SELECT n.* EXCLUDE (params), c.kind, f.severity, f.rule, f.message, n.params
FROM findings AS f JOIN run_names AS n USING (attempt_id) JOIN cell AS c ON c.cell_id = n.cell_id;
COMMENT ON VIEW qc IS 'One row per finding about a run that should be known before it is cited. Rules:
busy_machine: other processes used the cores during the timing. The signs are a mean load above 1.25 times the cores (unless the run''s only
thread was never interrupted), processor time below 90% of the elapsed time, more than 10% of the readings above 1.5 times the median of
their document and arm, or an interval of a speed-up of 5 documents or more whose ends differ by more than a factor of 10. It explains
noise_floor, noise_floor_coverage and realised_above_ideal, which are then not reported;
clocks_disagree;
not_repeatable: compares only files of the same version of their writer; severity 1 if the other attempt ran on another machine;
noise_floor: full depth''s time over its own differs from 1 by more than twice the half width of its interval; severity 1 up to 5%;
noise_floor_coverage: number of a suite''s intervals of full depth against itself on one machine that do not contain 1, reported once, at
the farthest that is not a noise_floor finding. Of 20 intervals of 95%, one misses by chance; severity 2 if the probability of so many is
below 1%;
few_timed_documents: fewer than 20, or fewer than 20 batches;
coarse_energy: energy counters change less than 10 times in a timed decode;
realised_above_ideal: the lower end of speedup_decode is above 1.05 times ideal_speedup_decode;
throttled;
slow_clock: below 90% of the median over all rounds on that machine;
trace_incomplete;
not_conforming;
replay_differs: the mean exit layers of a real decode and a replay of one setting differ by more than an eighth of the blocks (at least
one), and their intervals do not overlap. That is more than the keys and values of skipped blocks usually explain;
near_floor: full depth''s headline metric, on a scale to 100, is below 5. For shares of right choices or labels: its interval is not above
the accuracy of guessing (a random choice; the most frequent label);
cut_by_length: more than half of full depth''s answers end at max_new_tokens;
dirty_commit;
random_weights;
limited;
generation_not_applied: the score is not that of a model card;
documents_dropped: severity 1 if the suite requests it;
documents_unscorable;
prompts_truncated.';

CREATE VIEW answers AS
-- By the metric that frontier shows.
WITH scored AS (
    SELECT s.attempt_id, s.doc_key, l.scores, s.output_ids, len(s.output_ids) = s.n_output AS has_ids
    FROM sample AS s
    JOIN latest_scores AS l ON l.attempt_id = s.attempt_id AND l.doc_key = s.doc_key
),
headline AS (
    SELECT attempt_id, arg_max(metric, (scored_at, -ordinal)) AS metric FROM metric WHERE role = 'headline' GROUP BY attempt_id
),
beside AS (
    SELECT
        s.attempt_id, s.doc_key, any_value(s.scores) AS scores, any_value(f.scores) AS full_scores,
        any_value(CASE WHEN s.has_ids AND f.has_ids THEN list_transform(
            list_zip(s.output_ids, f.output_ids), lambda pair: pair[1] IS DISTINCT FROM pair[2]
        ) END) AS differs
    FROM scored AS s
    JOIN runs AS r ON r.attempt_id = s.attempt_id
    LEFT JOIN scored AS f ON f.attempt_id = r.full_depth_attempt_id AND f.doc_key = s.doc_key
    GROUP BY s.attempt_id, s.doc_key
)
SELECT
    n.* EXCLUDE (params), s.* EXCLUDE (attempt_id), h.metric, (b.scores ->> h.metric)::DOUBLE AS score,
    (b.full_scores ->> h.metric)::DOUBLE AS full_score, score - full_score AS delta,
    len(list_filter(b.differs, lambda differs: NOT differs)) AS equal_tokens,
    list_position(b.differs, true) AS first_divergence, n.params
FROM sample AS s
JOIN run_names AS n ON n.attempt_id = s.attempt_id
LEFT JOIN headline AS h ON h.attempt_id = s.attempt_id
LEFT JOIN beside AS b ON b.attempt_id = s.attempt_id AND b.doc_key = s.doc_key;
COMMENT ON VIEW answers IS 'One row per document of a quality run.';

CREATE VIEW token_trace AS
SELECT
    n.* EXCLUDE (params), t.* EXCLUDE (attempt_id), own.text, its.text AS full_text,
    -- NULL if the trace has no token of full depth.
    CASE WHEN d.is_known THEN coalesce(t.token_id = t.full_token_id, false) END AS equal_full,
    CASE WHEN d.is_known THEN coalesce(t.position >= d.first_divergence, false) END AS diverged,
    a.is_right, a.is_chosen, a.full_is_chosen, n.params
FROM token_exit AS t
JOIN run_names AS n ON n.attempt_id = t.attempt_id
JOIN cell AS c ON c.cell_id = n.cell_id
JOIN model_artifact AS m ON m.model_id = c.model_id
-- An encoder's outputs are labels, which the tokenizer does not know.
LEFT JOIN token_text AS own ON own.tokenizer_sha256 = m.tokenizer_sha256 AND own.token_id = t.token_id AND m.kind <> 'encoder'
LEFT JOIN token_text AS its ON its.tokenizer_sha256 = m.tokenizer_sha256 AND its.token_id = t.full_token_id AND m.kind <> 'encoder'
-- Joined last, and grouped by the join keys: then a query that does not use them does not compute them.
LEFT JOIN (
    SELECT attempt_id, doc_key, any_value(is_known) AS is_known, any_value(first_divergence) AS first_divergence
    FROM document_exit GROUP BY attempt_id, doc_key
) AS d ON d.attempt_id = t.attempt_id AND d.doc_key = t.doc_key
LEFT JOIN (
    SELECT
        attempt_id, doc_key, choice, any_value(is_right) AS is_right, any_value(is_chosen) AS is_chosen,
        any_value(full_is_chosen) AS full_is_chosen
    FROM choice_answer GROUP BY attempt_id, doc_key, choice
) AS a ON a.attempt_id = t.attempt_id AND a.doc_key = t.doc_key AND a.choice = t.choice;
COMMENT ON VIEW token_trace IS 'One row per token of a quality run or a replay: generated (choice is NULL), or scored in a given text
(choice is the text''s number).';

CREATE VIEW sequence_trace AS
SELECT n.* EXCLUDE (params), t.* EXCLUDE (attempt_id), CASE WHEN t.label_id IS NOT NULL THEN t.label_id = t.gold END AS is_right, n.params
FROM sequence_block AS t JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW sequence_trace IS 'One row per document and gated block (including the last block), of quality runs of encoders.';

CREATE VIEW sequence_blocks AS
SELECT
    n.* EXCLUDE (params), r.blocks, t.block, t.asked, t.exited, t.exited / max(t.asked) OVER (PARTITION BY t.attempt_id) AS share_exited,
    t.right_of_asked, t.right_of_exited, t.mean_error_of_exited, t.mean_score, n.params
FROM (
    SELECT
        attempt_id, block, count(*) AS asked, count(*) FILTER (exited) AS exited,
        avg((label_id = gold)::INT) AS right_of_asked, avg((label_id = gold)::INT) FILTER (exited) AS right_of_exited,
        avg(abs(prediction - gold)) FILTER (exited AND label_id IS NULL) AS mean_error_of_exited, avg(score) FILTER (isfinite(score)) AS mean_score
    FROM sequence_block GROUP BY attempt_id, block
) AS t
JOIN run_names AS n USING (attempt_id)
JOIN runs AS r USING (attempt_id);
COMMENT ON VIEW sequence_blocks IS 'One row per quality run of an encoder and gated block: number of documents that reached the block and
that exited there, and their accuracy.';

CREATE VIEW sequence_replay AS
-- A gate's score of a document is the same at any threshold, so a run covers all thresholds up to its own. At NaN no document exits.
WITH scored AS (SELECT * REPLACE (CASE WHEN NOT isnan(score) THEN score END AS score) FROM sequence_block)
SELECT
    n.* EXCLUDE (params), t.doc_key, t.block, t.label_id, t.prediction, t.gold, CASE WHEN t.label_id IS NOT NULL THEN t.label_id = t.gold END AS is_right,
    coalesce(max(t.score) OVER (asked ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), '-infinity'::FLOAT) AS from_level,
    -- If the document exited here in the run, higher thresholds are unknown, and highest_level is below them.
    CASE WHEN t.exited THEN 'infinity'::FLOAT ELSE coalesce(max(t.score) OVER asked, '-infinity'::FLOAT) END AS below_level,
    max(t.score) FILTER (NOT t.exited) OVER (PARTITION BY t.attempt_id) AS highest_level, n.params
FROM scored AS t JOIN run_names AS n USING (attempt_id)
WINDOW asked AS (PARTITION BY t.attempt_id, t.doc_key ORDER BY t.block);
COMMENT ON VIEW sequence_replay IS 'One row per document and gated block of a quality run of an encoder. At thresholds of the score from
from_level to below below_level, the document exits at this block. This holds up to the run''s highest_level, and only if each document
exits on its own (not for pabee with batch = whole).';

CREATE VIEW choice_answers AS
SELECT n.* EXCLUDE (params), a.* EXCLUDE (attempt_id), n.params FROM choice_answer AS a JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW choice_answers IS 'One row per text whose log-likelihood a task requested, of a quality run or a replay.';

CREATE VIEW vocabulary AS
SELECT tokenizer_sha256, token_id, text, begins_word FROM token_text;
COMMENT ON VIEW vocabulary IS 'One row per tokenizer and token id: the texts of token_trace; join other ids by the tokenizer_sha256 of runs.';

CREATE VIEW plain_probes AS
SELECT
    n.* EXCLUDE (params), r.documents, r.blocks, r.first_token, r.full_depth_cell_id, r.full_depth_attempt_id,
    row_number() OVER (PARTITION BY r.full_depth_cell_id ORDER BY n.attempt_id DESC) = 1 AS is_latest,
    row_number() OVER (
        PARTITION BY n.model, n.task_label, n.random_weights ORDER BY r.documents DESC, n.attempt_id DESC
    ) = 1 AS is_largest, n.params
FROM run_names AS n JOIN runs AS r USING (attempt_id)
WHERE r.kind = 'probe' AND r.record IS NULL AND n.attempt_id NOT IN (
    SELECT attempt_id FROM probe_token WHERE choice IS NOT NULL
);
COMMENT ON VIEW plain_probes IS 'One row per probe run with tokens of answers. Probes of given texts, and probes that record the inside of
blocks, have none.';

CREATE VIEW probe_trace AS
SELECT n.* EXCLUDE (params), p.* EXCLUDE (attempt_id), n.params FROM probe_token AS p JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW probe_trace IS 'One row per probed token of full depth''s answers (choice is NULL) or of given texts; lists have one entry per block 1..L.';

CREATE VIEW token_probe AS
SELECT
    t.* EXCLUDE (choice, logprob, full_logprob, is_greedy, full_is_greedy, is_right, is_chosen, full_is_chosen, params), b.attempt_id AS probe_attempt_id, p.gold_token_id, p.first_match, p.stable_from,
    p.rank_final[t.exit_layer] AS rank_final, p.p_final[t.exit_layer]::DOUBLE AS p_final, p.p1[t.exit_layer]::DOUBLE AS p1,
    (p.p1[t.exit_layer] - p.p2[t.exit_layer])::DOUBLE AS gap,
    (p.p1[-1] - p.p2[-1])::DOUBLE AS full_gap, t.params
FROM token_trace AS t
JOIN runs AS r ON r.attempt_id = t.attempt_id
JOIN document_exit AS c ON c.attempt_id = t.attempt_id AND c.doc_key = t.doc_key AND c.is_known
JOIN plain_probes AS b ON b.full_depth_cell_id = r.full_depth_cell_id AND b.is_latest
JOIN probe_token AS p ON p.attempt_id = b.attempt_id AND p.doc_key = t.doc_key AND p.position = t.position
WHERE p.choice IS NULL AND t.choice IS NULL AND t.position <= coalesce(c.first_divergence, t.position);
COMMENT ON VIEW token_probe IS 'token_trace joined with the newest probe of full depth''s answers: one row per token of a quality or replay
run, up to and including the first that differs from full depth''s (only there diverged is true). After it, the probe''s context differs.';

CREATE VIEW score_trace AS
SELECT n.* EXCLUDE (params), t.* EXCLUDE (attempt_id), n.params FROM score_token AS t JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW score_trace IS 'One row per probed token of a scores run: the method''s gate evaluated at every block as if the token had
not exited before; lists have one entry per block 1..L.';

CREATE VIEW sublayer_trace AS
SELECT n.* EXCLUDE (params), t.* EXCLUDE (attempt_id), n.params FROM sublayer_token AS t JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW sublayer_trace IS 'One row per probed token, block and read-out, of probes with the record sublayers (a separate run next to
the plain probe, of few documents).';

CREATE VIEW layer_pairs AS
SELECT n.* EXCLUDE (params), p.* EXCLUDE (attempt_id), n.params FROM layer_pair AS p JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW layer_pairs IS 'One row per document and ordered pair of blocks, including each block with itself, of probes with the record
layer-pairs (a separate run next to the plain probe, of few documents).';

CREATE VIEW prompt_tokens AS
SELECT n.* EXCLUDE (params), t.* EXCLUDE (attempt_id), own.text, n.params
FROM prompt_token AS t
JOIN run_names AS n ON n.attempt_id = t.attempt_id
JOIN cell AS c ON c.cell_id = n.cell_id
JOIN model_artifact AS m ON m.model_id = c.model_id
LEFT JOIN token_text AS own ON own.tokenizer_sha256 = m.tokenizer_sha256 AND own.token_id = t.token_id;
COMMENT ON VIEW prompt_tokens IS 'One row per token of a prompt as input to the model, of probes with the record prompt-ids (a separate run
next to the plain probe, of the first documents). Its setting_id (see runs) is shared by all methods on the same prompts.';

CREATE VIEW token_timings AS
SELECT n.* EXCLUDE (params), t.* EXCLUDE (attempt_id, wall_ns), own.text, t.wall_ns / 1e6 AS ms, n.params
FROM token_time AS t
JOIN run_names AS n ON n.attempt_id = t.attempt_id
JOIN cell AS c ON c.cell_id = n.cell_id
JOIN model_artifact AS m ON m.model_id = c.model_id
LEFT JOIN token_text AS own ON own.tokenizer_sha256 = m.tokenizer_sha256 AND own.token_id = t.token_id;
COMMENT ON VIEW token_timings IS 'One row per token, round and arm of timings with the record token-times (a separate run next to the plain
timing, of the first documents). One document at a time is decoded without a trace, and the clock is read after every token. The times
include that reading; speed-ups are measured without it, see timings and frontier.';

CREATE VIEW token_tags AS
SELECT n.* EXCLUDE (params), t.* EXCLUDE (attempt_id), n.params FROM token_tag AS t JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW token_tags IS 'One row per tagger and token of full depth''s answers that belongs to a word; created by `exitbench annotate
upos`.';

CREATE VIEW layer_trace AS
SELECT
    n.* EXCLUDE (params), p.doc_key, p.choice, p.position, p.token_id, p.full_token_id, p.token_kind, p.first_match, p.stable_from, p.block,
    -- Lists are indexed, not unnested: then lists that a query does not use are not read.
    p.top1_id[p.block] AS top1_id, p.top2_id[p.block] AS top2_id, p.top3_id[p.block] AS top3_id, p.p1[p.block] AS p1,
    p.p2[p.block] AS p2, p.p3[p.block] AS p3, p.p_final[p.block] AS p_final, p.rank_final[p.block] AS rank_final,
    p.entropy[p.block] AS entropy, p.logsumexp[p.block] AS logsumexp, p.cosine_previous[p.block] AS cosine_previous,
    p.cosine_previous_normed[p.block] AS cosine_previous_normed, p.cosine_last[p.block] AS cosine_last,
    p.jsd_previous[p.block] AS jsd_previous, p.jsd_last[p.block] AS jsd_last, n.params
FROM (SELECT *, unnest(range(1, len(p1) + 1))::SMALLINT AS block FROM probe_token) AS p
JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW layer_trace IS 'One row per probed token and block: probe_trace without lists.';

CREATE VIEW exit_histogram AS
SELECT n.* EXCLUDE (params), t.exit_layer, t.tokens, t.tokens / sum(t.tokens) OVER (PARTITION BY t.attempt_id) AS share, n.params
FROM (
    SELECT attempt_id, exit_layer, count(*) AS tokens FROM token_exit GROUP BY ALL
) AS t
JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW exit_histogram IS 'One row per quality or replay run and exit layer that occurred.';

CREATE OR REPLACE MACRO share_kept(value, full_value, lower_is_better) AS
    CASE WHEN full_value > 0 THEN CASE WHEN lower_is_better THEN 2 - value / full_value ELSE value / full_value END END;
COMMENT ON MACRO share_kept IS 'Quality as a share of full depth''s: 1 + gain / full_value. A score of 0.98 times full depth''s keeps 98% of it, and so does an error of
1.02 times full depth''s. NULL unless full depth''s is positive: a correlation may be negative.';

CREATE OR REPLACE MACRO t_quantile(n) AS
    CASE WHEN n > 1 THEN coalesce(
        [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228][n - 1],
        1.96 + 2.3724 / (n - 1) + 2.8225 / (n - 1) ** 2
    ) END;
COMMENT ON MACRO t_quantile IS 'Half width of the 95% interval of a mean of n independent rows, in standard errors: the 97.5% quantile of
Student''s t at n - 1 degrees of freedom. NULL if there is one row. (From tables; above ten degrees of freedom by Abramowitz and Stegun,
26.7.5.)';

CREATE OR REPLACE MACRO ratio_error(s, c) AS
    sqrt(greatest(0, count(*) / (count(*) - 1) * (
        sum(s * s) - 2 * sum(s) / sum(c) * sum(s * c) + (sum(s) / sum(c)) ** 2 * sum(c * c)
    ))) / sum(c);
COMMENT ON MACRO ratio_error IS 'Standard error of sum(s) / sum(c) over grouped rows, one per document. (The linearised variance of a ratio;
Cochran, Sampling Techniques, 1977, section 6.4.)';

CREATE OR REPLACE MACRO share_end(share, error, n, side) AS
    CASE WHEN n > 1 THEN CASE
        WHEN share <= 0 OR share >= 1 OR error <= 1e-7
            THEN share + CASE WHEN side > 0 THEN 1 - share ELSE -share END * (1 - 0.025 ** (1 / n))
        ELSE share / (share + (1 - share) * exp(-side * least(500, t_quantile(n) * error / (share * (1 - share)))))
    END END;
COMMENT ON MACRO share_end IS 'One end of the 95% interval of a share, 0..1, from its standard error over n documents: the lower for side =
-1, the upper for 1. Student''s t on the logit, which near 0 and 1 gives a much wider interval than the share itself. If no documents
differ: as far as unseen documents could move it, 1 - 0.025 ** (1 / n) of them (the rule of three, two-sided). NULL if there is one
document.';

CREATE OR REPLACE MACRO share_half_width(share, error, n) AS
    greatest(share - share_end(share, error, n, -1), share_end(share, error, n, 1) - share);
COMMENT ON MACRO share_half_width IS 'Half the width of the 95% interval of a share, 0..1, from its standard error over n documents: the
distance to the farther share_end.';

CREATE OR REPLACE MACRO half_width(s, c) AS
    CASE
        WHEN min(s) >= 0 AND bool_and(s <= c) THEN share_half_width(sum(s) / sum(c), ratio_error(s, c), count(*))
        WHEN ratio_error(s, c) > 1e-7 * abs(sum(s) / sum(c)) THEN t_quantile(count(*)) * ratio_error(s, c)
    END;
COMMENT ON MACRO half_width IS 'Half the width of the 95% interval of sum(s) / sum(c) over grouped rows, one per document: s is a sum over
the document''s tokens and c their number, so tokens of one document do not count as independent. It uses t_quantile of the number of
documents, so that few documents give a wide interval, and share_half_width if every s is from 0 to c. Never 0: NULL if there is one
document, or if none differs and the scale is not known.';

CREATE OR REPLACE MACRO mean_half_width(x) AS
    CASE WHEN max(x) > min(x) THEN t_quantile(count(x)) * stddev_samp(x) / sqrt(count(x)) END;
COMMENT ON MACRO mean_half_width IS 'Half the width of the 95% interval of avg(x) over independent rows, such as runs, by t_quantile of
their number. NULL if there is one row, or if all are equal, which gives no estimate of the variation.';

CREATE OR REPLACE MACRO loss_percent(delta_low, delta_high, lower_is_better, full_value, has_no_scale) AS
    -- `greatest` ignores NULL: without an interval it would call the loss 0.
    CASE WHEN full_value > 0 AND NOT has_no_scale AND delta_low IS NOT NULL AND delta_high IS NOT NULL
        THEN greatest(0, 100 * CASE WHEN lower_is_better THEN delta_high ELSE -delta_low END / full_value) END;
COMMENT ON MACRO loss_percent IS 'Upper bound on the loss, from the interval of a difference, as a percentage of full depth''s value; 0 if
there is no loss, NULL without a scale or an interval.';

CREATE OR REPLACE MACRO is_choosing(doc_key) AS
    md5(doc_key)[:2] < '55';
COMMENT ON MACRO is_choosing IS 'Whether a document belongs to the third on which settings are chosen; the other two thirds confirm the choice.';

CREATE VIEW paired AS
WITH points AS (
    SELECT
        f.* EXCLUDE (n), f.value - f.ci_low AS value_down,
        f.ci_high - f.value AS value_up, m.value - m.ci_low AS full_down, m.ci_high - m.value AS full_up,
        coalesce(m.ci_method LIKE 'Student%', true) AS has_no_scale
    FROM frontier AS f
    LEFT JOIN (FROM metric QUALIFY scored_at = max(scored_at) OVER (PARTITION BY attempt_id, metric)) AS m
        ON m.attempt_id = f.full_depth_attempt_id AND m.metric = f.metric AND m.value = f.full_value
    WHERE f.execution = 'real' AND NOT f.is_full_depth AND f.delta IS NOT NULL
),
ends AS (
    SELECT
        p.*, d.n, d.n_up, d.n_down, d.delta IS NOT NULL AS is_paired,
        CASE WHEN is_paired THEN d.delta_low
            WHEN NOT has_no_scale THEN p.delta - sqrt(value_down ** 2 + full_up ** 2) END AS delta_low,
        CASE WHEN is_paired THEN d.delta_high
            WHEN NOT has_no_scale THEN p.delta + sqrt(value_up ** 2 + full_down ** 2) END AS delta_high,
        a.delta_low AS choosing_delta_low, a.delta_high AS choosing_delta_high, b.n AS confirming_n, b.delta AS confirming_delta,
        b.delta_low AS confirming_delta_low, b.delta_high AS confirming_delta_high
    FROM points AS p
    LEFT JOIN quality_difference AS d ON d.attempt_id = p.attempt_id AND d.full_attempt_id = p.full_depth_attempt_id
        AND d.metric = p.metric AND d.part = 'all'
    LEFT JOIN quality_difference AS a ON a.attempt_id = p.attempt_id AND a.full_attempt_id = p.full_depth_attempt_id
        AND a.metric = p.metric AND a.part = 'choosing'
    LEFT JOIN quality_difference AS b ON b.attempt_id = p.attempt_id AND b.full_attempt_id = p.full_depth_attempt_id
        AND b.metric = p.metric AND b.part = 'confirming'
)
SELECT
    model, task, task_label, method, label, threshold, kv_policy, seed, execution, random_weights, suite, cell_id, attempt_id, metric,
    full_value, delta, delta_low, delta_high, is_paired,
    loss_percent(delta_low, delta_high, lower_is_better, full_value, has_no_scale) AS loss_high_percent,
    loss_percent(choosing_delta_low, choosing_delta_high, lower_is_better, full_value, has_no_scale) AS choosing_loss_high_percent,
    loss_percent(confirming_delta_low, confirming_delta_high, lower_is_better, full_value, has_no_scale) AS confirming_loss_high_percent,
    confirming_n, confirming_delta, confirming_delta_low, confirming_delta_high,
    CASE WHEN lower_is_better THEN n_down ELSE n_up END AS gained, CASE WHEN lower_is_better THEN n_up ELSE n_down END AS lost, n, params
FROM ends;
COMMENT ON VIEW paired IS 'One row per real run of frontier other than full depth, compared with full depth of the same checkpoint on the
same documents. Each end of a paired interval is Gaffke''s bound, which adds one document that gains or loses the most that one can
(results/statistics/bounded_mean.py). If the metric has no scale, it is Student''s t of the differences. For BLEU, F1, Matthews and Pearson
correlation, differences are the leave-one-out effects of documents. For other metrics that are not means over documents, the intervals of
the two runs are combined in quadrature as if independent, which is too wide rather than too narrow; these have no choosing and confirming part.';

CREATE VIEW pareto AS
WITH candidates AS (
    SELECT
        p.* EXCLUDE (full_value, gained, lost, n), f.setting_id, p.method = 'static' AS is_static,
        f.speedup, f.speedup_low, f.speedup_high, f.aa_high, a.value AS choosing_speedup,
        b.value AS confirming_speedup, b.ci_low AS confirming_speedup_low, b.ci_high AS confirming_speedup_high
    FROM paired AS p
    JOIN frontier AS f USING (attempt_id)
    JOIN metric AS a ON a.attempt_id = f.timing_attempt_id AND a.metric = 'speedup_choosing'
    LEFT JOIN metric AS b ON b.attempt_id = f.timing_attempt_id AND b.metric = 'speedup_confirming'
        AND is_measurable(b.ci_low, b.ci_high)
    WHERE NOT f.random_weights AND f.conforms IS DISTINCT FROM false AND f.method NOT IN ('random', 'oracle')
        AND p.choosing_loss_high_percent IS NOT NULL AND f.speedup IS NOT NULL AND a.value > 1
),
better AS (
    SELECT * FROM candidates
    QUALIFY choosing_speedup > coalesce(max(choosing_speedup) OVER (
        PARTITION BY setting_id, is_static ORDER BY choosing_loss_high_percent, choosing_speedup DESC, delta DESC, cell_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 1)
)
SELECT
    * EXCLUDE (params, aa_high),
    lead(choosing_loss_high_percent) OVER (PARTITION BY setting_id, is_static ORDER BY choosing_loss_high_percent) AS next_percent,
    CASE WHEN confirming_speedup_low > greatest(1, coalesce(aa_high, 1)) AND confirming_loss_high_percent IS NOT NULL
        THEN greatest(choosing_loss_high_percent, confirming_loss_high_percent) END AS confirmed_percent,
    params
FROM better;
COMMENT ON VIEW pareto IS 'Recommended settings by allowed loss of quality. At an allowed loss of x percent of full depth''s quality, the
chosen run is the fastest of a model and task whose loss is bounded by x on the choosing third of the documents: choosing_loss_high_percent
<= x < next_percent (NULL: no upper end). The confirming part, the other two thirds, confirms it from confirmed_percent on: its own bound on
the loss is at most x, and its speed-up is above 1 and above full depth against itself (NULL: it is not shown to be faster). Report the
numbers of the confirming part, on which nothing was chosen. The view has only real runs on a scale, with trained weights, whose methods
keep their contracts. Random exits and oracles are excluded; static depths are chosen among themselves.';

CREATE VIEW random_to_oracle AS
WITH points AS (
    SELECT * FROM frontier
    WHERE execution = 'real' AND mean_exit_layer IS NOT NULL AND token_match IS NOT NULL
),
compared AS (
    FROM points WHERE NOT is_full_depth AND method NOT IN ('random', 'oracle')
),
random_exits AS (
    SELECT p.attempt_id, r.params -> 'mean_exit' AS budget, avg(r.mean_exit_layer) AS depth, avg(r.token_match) AS match
    FROM compared AS p JOIN points AS r ON r.setting_id = p.setting_id AND r.method = 'random'
    GROUP BY p.attempt_id, p.kv_policy, budget, r.kv_policy
    QUALIFY dense_rank() OVER (
        PARTITION BY p.attempt_id
        ORDER BY r.kv_policy IS DISTINCT FROM p.kv_policy, r.kv_policy IS DISTINCT FROM 'state-copy', r.kv_policy
    ) = 1
),
budgets AS (
    SELECT attempt_id, depth, match FROM random_exits
    UNION ALL
    SELECT DISTINCT p.attempt_id, p.blocks, 1 FROM compared AS p SEMI JOIN random_exits USING (attempt_id)
),
neighbours AS (
    SELECT
        p.attempt_id, max(b.depth) FILTER (b.depth <= p.mean_exit_layer) AS below,
        arg_max(b.match, b.depth) FILTER (b.depth <= p.mean_exit_layer) AS match_below,
        min(b.depth) FILTER (b.depth >= p.mean_exit_layer) AS above,
        arg_min(b.match, b.depth) FILTER (b.depth >= p.mean_exit_layer) AS match_above
    FROM compared AS p JOIN budgets AS b USING (attempt_id)
    GROUP BY p.attempt_id
),
oracles AS (
    SELECT p.attempt_id, o.token_match AS oracle_match, o.mean_exit_layer AS oracle_exit_layer
    FROM compared AS p JOIN points AS o ON o.setting_id = p.setting_id AND o.method = 'oracle'
    QUALIFY row_number() OVER (
        PARTITION BY p.attempt_id
        ORDER BY
            (o.params ->> 'match') IS DISTINCT FROM 'first', o.kv_policy IS DISTINCT FROM p.kv_policy,
            o.kv_policy IS DISTINCT FROM 'state-copy', o.cell_id
    ) = 1
),
placed AS (
    SELECT
        p.attempt_id, p.token_match, o.oracle_match, o.oracle_exit_layer, n.below IS NULL AS shallower,
        coalesce(
            n.match_below
            + (n.match_above - n.match_below) * (p.mean_exit_layer - n.below) / nullif(n.above - n.below, 0),
            n.match_below, n.match_above
        ) AS random_match
    FROM compared AS p
    JOIN neighbours AS n USING (attempt_id)
    JOIN oracles AS o USING (attempt_id)
)
SELECT
    attempt_id, random_match, shallower, oracle_match, oracle_exit_layer,
    (token_match - random_match) / nullif(oracle_match - random_match, 0) AS share_of_gap
FROM placed;
COMMENT ON VIEW random_to_oracle IS 'One row per real run with runs of random exits and the oracle on the same documents, settings and seed. Random
exits are interpolated between the mean exit layers at which they were run and full depth; below the smallest of these layers that run is
used. The oracle exits at the first match if such a run exists. Random exits and the oracle have the KV policy of the method if they were run with
it, else state-copy.';

CREATE VIEW probe_by_document AS
SELECT n.* EXCLUDE (params), d.* EXCLUDE (attempt_id), n.params
FROM (
    SELECT
        attempt_id, doc_key, block, count(*) AS n,
        count(*) FILTER (first_match = block) AS first_matches, count(*) FILTER (stable_from <= block) AS settled,
        count(*) FILTER (monotone_from <= block) AS monotone,
        count(*) FILTER (nearly_monotone_from <= block) AS nearly_monotone, any_value(tolerance) AS tolerance,
        count(*) FILTER (top1_id = full_token_id) AS equal_full, sum(p1) AS p1, sum(p1 - p2) AS gap, sum(p_final) AS p_final,
        sum(p_final * p_final) AS p_final_squared, sum(entropy) AS entropy, sum(cosine_previous) AS cosine_previous,
        sum(cosine_last) AS cosine_last, sum(jsd_last) AS jsd_last
    FROM (
        -- Lists are indexed, not unnested: then lists that a query does not use are not read.
        SELECT
            attempt_id, doc_key, block, first_match, stable_from, monotone_from, nearly_monotone_from, tolerance,
            full_token_id, top1_id[block] AS top1_id,
            p1[block]::DOUBLE AS p1, p2[block]::DOUBLE AS p2, p_final[block]::DOUBLE AS p_final,
            entropy[block]::DOUBLE AS entropy, cosine_previous[block]::DOUBLE AS cosine_previous,
            cosine_last[block]::DOUBLE AS cosine_last, jsd_last[block]::DOUBLE AS jsd_last
        FROM (SELECT *, unnest(range(1, len(p1) + 1))::SMALLINT AS block FROM probe_token WHERE choice IS NULL)
    )
    GROUP BY ALL
) AS d
JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW probe_by_document IS 'One row per probe run, document and block. All columns but n and tolerance are counts or sums over the
document''s probed tokens, so sum(p1) / sum(n) over grouped rows is a mean and half_width(p1, n) half its 95% interval. The last digits of
sums depend on the order in which threads add.';

CREATE VIEW suitability AS
WITH token AS (
    SELECT
        p.attempt_id, p.doc_key, r.blocks, p.first_match, p.stable_from,
        list_transform(p.top1_id, lambda id: (id = p.full_token_id)::INTEGER) AS matches
    FROM probe_token AS p JOIN runs AS r USING (attempt_id)
    WHERE p.choice IS NULL
),
document AS (
    SELECT
        attempt_id, doc_key, count(*) AS n, sum(first_match / blocks) AS first_match,
        sum(stable_from / blocks) AS stable_from, sum(matches[greatest(blocks // 2, 1)]) AS agreement_mid,
        sum(list_avg(matches)) AS agreement_area, count_if(first_match < stable_from) AS lost,
        sum(stable_from - first_match) AS blocks_between, count_if(stable_from = blocks) AS only_last
    FROM token GROUP BY ALL
)
SELECT
    n.* EXCLUDE (params), d.* EXCLUDE (attempt_id), n.params
FROM (
    SELECT
        attempt_id, sum(first_match) / sum(n) AS first_match, half_width(first_match, n) AS first_match_half,
        sum(stable_from) / sum(n) AS stable_from, half_width(stable_from, n) AS stable_from_half,
        sum(agreement_mid) / sum(n) AS agreement_mid, half_width(agreement_mid, n) AS agreement_mid_half,
        sum(agreement_area) / sum(n) AS agreement_area, half_width(agreement_area, n) AS agreement_area_half,
        sum(lost) / sum(n) AS share_lost, half_width(lost, n) AS share_lost_half,
        sum(blocks_between) / sum(lost) AS blocks_between, sum(only_last) / sum(n) AS share_only_last,
        count(*) AS documents, sum(n)::BIGINT AS n
    FROM document GROUP BY attempt_id
) AS d
JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW suitability IS 'One row per probe run: how early full depth''s tokens are settled. Intervals are over documents.';

CREATE VIEW token_kinds AS
FROM (VALUES
    ('frame', 'the pattern of the sentence: frequent words'),
    ('end', 'a full stop, and the end of the answer'),
    ('copy', 'one source word, carried over or translated one to one'),
    ('agreement', 'gender and number of a word of the same phrase'),
    ('lexical', 'another word, which decides among near-synonyms'),
    ('distance', 'gender and number, past another noun or sentence'),
    ('state1', 'one statement'),
    ('state2', 'two statements, one changing what the other said'),
    ('state3', 'three statements, each changing what another said'),
    ('hop1', 'one fact'),
    ('hop2', 'two facts, one found by what the other says'),
    ('hop3', 'three facts, each found by what the one before says'),
    ('hop4', 'four facts, each found by what the one before says'),
    ('hop5', 'five facts, each found by what the one before says')
) AS kinds(token_kind, decided_by);
COMMENT ON VIEW token_kinds IS 'One row per kind of word in generated data, with the information that determines the word, and so how much
must be computed for it.';

CREATE VIEW exit_by_kind AS
WITH probed AS (
    SELECT
        attempt_id, 'probe' AS kind, token_kind, doc_key, count(*) AS n, sum(first_match) AS first_match,
        sum(stable_from) AS stable_from, count_if(token_id = full_token_id) AS equal_full
    FROM probe_token WHERE token_kind IS NOT NULL GROUP BY ALL
),
decoded AS (
    -- A token beyond the end of full depth's answer counts as unequal.
    SELECT
        t.attempt_id, r.kind, t.token_kind, t.doc_key, count(*) AS n, sum(t.exit_layer) AS exit_layer,
        CASE WHEN count(t.full_token_id) > 0 THEN count_if(t.token_id = t.full_token_id) END AS equal_full
    FROM token_exit AS t
    JOIN (SELECT attempt_id, kind FROM attempt JOIN cell USING (cell_id)) AS r USING (attempt_id)
    WHERE t.token_kind IS NOT NULL GROUP BY ALL
),
by_kind AS (
    SELECT
        attempt_id, kind, token_kind, CAST(sum(n) AS BIGINT) AS n,
        sum(exit_layer) / sum(n) AS mean_exit_layer, half_width(exit_layer, n) AS exit_layer_half,
        sum(first_match) / sum(n) AS mean_first_match, half_width(first_match, n) AS first_match_half,
        sum(stable_from) / sum(n) AS mean_stable_from, half_width(stable_from, n) AS stable_from_half,
        CASE WHEN count(equal_full) > 0 THEN sum(coalesce(equal_full, 0)) / sum(n) END AS share_equal_full,
        CASE WHEN count(equal_full) > 0 THEN half_width(coalesce(equal_full, 0), n) END AS equal_full_half
    FROM (FROM probed UNION ALL BY NAME FROM decoded)
    GROUP BY ALL
)
SELECT n.* EXCLUDE (params), k.* EXCLUDE (attempt_id), n.params
FROM by_kind AS k JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW exit_by_kind IS 'One row per run and kind of word in generated data.';

CREATE VIEW fit_curves AS
SELECT n.* EXCLUDE (params), f.* EXCLUDE (attempt_id), n.params FROM fit_curve AS f JOIN run_names AS n USING (attempt_id);
COMMENT ON VIEW fit_curves IS 'One row per fit run and epoch.';

CREATE VIEW calibrations AS
SELECT
    n.* EXCLUDE (params) REPLACE (s.threshold AS threshold), c.identity ->> '$.calibration.rule' AS rule,
    c.identity ->> '$.calibration.consistency' AS consistency, (c.identity ->> '$.calibration.delta')::DOUBLE AS delta,
    (c.identity ->> '$.calibration.epsilon')::DOUBLE AS epsilon, s.* EXCLUDE (attempt_id, threshold),
    s.passed AND s.step = max(s.step) FILTER (s.passed) OVER (PARTITION BY s.attempt_id) AS chosen,
    h.held_out_loss, h.held_out_mean_exit_layer, h.held_out_documents, n.params
FROM calibration_step AS s
JOIN run_names AS n USING (attempt_id)
JOIN cell AS c ON c.cell_id = n.cell_id
LEFT JOIN (
    SELECT
        attempt_id, max(value) FILTER (metric = 'held_out_loss') AS held_out_loss,
        max(value) FILTER (metric = 'held_out_mean_exit_layer') AS held_out_mean_exit_layer,
        max(n) FILTER (metric = 'held_out_loss') AS held_out_documents
    FROM metric GROUP BY attempt_id
) AS h ON h.attempt_id = s.attempt_id;
COMMENT ON VIEW calibrations IS 'One row per calibration run and tested level.';

CREATE VIEW trainings AS
SELECT
    coalesce(m.name, r.recipe) AS model, r.recipe,
    -- Claims on models trained on every block do not hold for a loss of a few blocks.
    (r.card ->> '$.recipe.objective.loss')
        || CASE WHEN json_array_length(r.card, '$.recipe.objective.blocks') > 0 THEN ' of some blocks' ELSE '' END AS loss,
    (r.card -> 'steps')::INTEGER AS steps, (r.card -> 'parameters')::BIGINT AS parameters,
    (r.card -> 'final_loss_nats')::DOUBLE AS final_loss_nats,
    (r.card -> '$.validation.token_accuracy')::DOUBLE[] AS token_accuracy,
    (r.card -> 'wall_seconds')::DOUBLE AS seconds, r.card, r.weights_sha256
FROM training_run AS r
LEFT JOIN (SELECT weights_sha256, max(name) AS name FROM model_artifact GROUP BY weights_sha256) AS m USING (weights_sha256);
COMMENT ON VIEW trainings IS 'One row per trained model.';

CREATE VIEW objectives AS
WITH objective AS (
    SELECT DISTINCT
        m.name AS model, coalesce(t.loss, 'unknown') AS loss,
        CASE WHEN t.loss LIKE '% of some blocks' THEN (t.card -> '$.recipe.objective.blocks')::INTEGER[] END AS trained_blocks
    FROM model_artifact AS m LEFT JOIN trainings AS t ON t.weights_sha256 = m.weights_sha256 OR t.model = m.name
),
by_model AS (
    SELECT
        model, CASE WHEN count(*) > 1 THEN 'several' ELSE any_value(loss) END AS loss,
        CASE WHEN count(*) = 1 THEN any_value(trained_blocks) END AS trained_blocks
    FROM objective GROUP BY model
)
SELECT
    *, CASE WHEN loss IN ('last', 'exit-heads') THEN 'last block'
            WHEN loss IN ('weighted', 'branchynet', 'layer-skip') THEN 'every block'
            WHEN trained_blocks IS NOT NULL THEN 'some blocks'
            WHEN loss NOT IN ('unknown', 'several') THEN loss END AS training
FROM by_model;
COMMENT ON VIEW objectives IS 'One row per model: its training objective, unknown without a training of this project (a released checkpoint).';

CREATE VIEW training_curves AS
SELECT t.model, t.recipe, l.step, l.block, l.metric, l.value, t.weights_sha256
FROM training_log AS l
JOIN trainings AS t USING (weights_sha256);
COMMENT ON VIEW training_curves IS 'One row per step, block and metric of a training''s log, each a mean over the steps since the previous
row.';

CREATE VIEW published AS
WITH candidate AS (
    SELECT
        p.published_id, r.model, r.task_label, r.split, r.documents, r.limited, r.blocks, r.batch_size, r.attempt_id,
        (r.params ->> 'min_exit')::INTEGER AS our_min_exit,
        v.value, v.ci_low, v.ci_high, v.n, d.source AS data_source, t.loss,
        coalesce(a.weights_sha256 = p.weights_sha256, false) AS same_weights,
        coalesce(d.data_sha256 = p.data_sha256, false) AND NOT r.limited AS same_data
    FROM published_result AS p
    JOIN runs AS r
        ON r.task = p.our_task AND r.method = p.our_method AND json_contains(r.params, p.our_params)
        AND r.kind = 'quality' AND NOT r.random_weights
        AND (
            p.min_exit_share IS NULL
            OR (r.params ->> 'min_exit')::INTEGER = greatest(1, round(p.min_exit_share * r.blocks))
        )
    JOIN metric_values AS v ON v.attempt_id = r.attempt_id AND v.metric = p.our_metric AND v.is_current
    JOIN cell AS c ON c.cell_id = r.cell_id
    JOIN model_artifact AS a USING (model_id)
    JOIN dataset_artifact AS d USING (data_id)
    LEFT JOIN trainings AS t ON t.weights_sha256 = a.weights_sha256
    QUALIFY row_number() OVER (
        PARTITION BY p.published_id
        ORDER BY
            same_weights DESC, same_data DESC, d.source = 'builtin', r.limited,
            coalesce(t.loss = p.model_loss, false) DESC, r.documents DESC, r.attempt_id DESC
    ) = 1
),
compared AS (
    SELECT
        p.*, m.* EXCLUDE (published_id, model, split, value), m.model AS our_model, m.split AS our_split,
        m.value AS measured, p.our_metric = 'mean_exit_layer' AS is_depth,
        try_cast(nullif(regexp_extract(p.setting, 'batch (\d+)', 1), '') AS INTEGER) AS their_batch_size
    FROM published_result AS p LEFT JOIN candidate AS m USING (published_id)
),
worded AS (
    SELECT
        *,
        concat_ws(
            '; ',
            CASE WHEN NOT coalesce(same_weights, false) THEN format('model: {} there, {} here', model, our_model) END,
            CASE WHEN NOT coalesce(model_blocks = blocks, false) THEN format('decoder blocks: {} there, {} here', model_blocks, blocks) END,
            CASE WHEN abs(our_min_exit - min_exit_share * blocks) > 1e-9 THEN format(
                'earliest exit: {:.0f} of {} blocks there, {} of {} here', min_exit_share * model_blocks, model_blocks, our_min_exit, blocks
            ) END,
            CASE WHEN NOT coalesce(same_weights OR loss = model_loss, false) THEN format(
                'trained on: {} there, {} here', model_loss, coalesce(loss, 'what is not known')
            ) END,
            CASE WHEN NOT coalesce(same_data, false) THEN format(
                'data: {}, {} there, {}, {}{} documents of {} here', dataset, coalesce(split, 'split not stated'),
                CASE WHEN data_source = 'builtin' THEN 'generated' ELSE task_label END,
                CASE WHEN limited THEN 'only ' ELSE '' END, documents, our_split
            ) END,
            CASE WHEN their_batch_size <> batch_size THEN format(
                'batch size: {} there, {} here', their_batch_size, batch_size
            ) END,
            caveat
        ) AS difference,
        -- A depth is converted to blocks of this model: the same share of its blocks.
        unit_factor * CASE WHEN is_depth THEN blocks / model_blocks ELSE 1 END AS per_unit
    FROM compared
)
SELECT
    published_id, source, figure_or_table, model, dataset, split, method, setting, metric, value, std, unit, note,
    CASE
        WHEN measured IS NULL THEN NULL
        WHEN difference = '' THEN 'same setting'
        WHEN data_source = 'builtin' THEN 'same method, generated data, other model'
        WHEN same_weights THEN 'same method, task and model'
        ELSE 'same method and task, other model'
    END AS comparable,
    measured / per_unit AS our_value, ci_low / per_unit AS our_ci_low, ci_high / per_unit AS our_ci_high,
    n AS our_n, CASE WHEN is_depth THEN value / model_blocks END AS depth_share,
    CASE WHEN is_depth THEN measured / blocks END AS our_depth_share, min_exit_share, our_min_exit / blocks AS our_min_exit_share, our_model, our_task, our_method, our_params, our_metric,
    CASE WHEN measured IS NOT NULL THEN nullif(difference, '') END AS differences,
    CASE WHEN measured IS NULL THEN coalesce(not_comparable, 'Not measured here.') END AS reason, attempt_id
FROM worded
ORDER BY ordinal;
COMMENT ON VIEW published IS 'One row per value printed in a paper or its authors'' files, next to a comparable run of ours, if there is
one.';

CREATE VIEW perf AS
SELECT
    regexp_replace(benchmark, '^(.*/)?(test_)?([^/]*)\.py::(test_)?', '\3/') AS benchmark, measured_at,
    git_commit AS commit, git_dirty AS dirty, median_s, len(data) AS rounds, data AS round_s, extra, params,
    machine ->> '$.hardware.cpu' AS cpu, (machine ->> '$.hardware.cores')::INTEGER AS cores,
    machine ->> '$.hardware.gpu' AS gpu, (machine ->> '$.hardware.threads')::INTEGER AS threads,
    machine ->> '$.environment.python' AS python, machine -> '$.environment.packages' AS packages,
    sha256(coalesce(machine -> '$.hardware', machine)::VARCHAR) AS machine_id, perf_run_id
FROM perf_sample;
COMMENT ON VIEW perf IS 'One row per benchmark of a run of `nox -s perf`, or of another imported run of pytest-benchmark.';
