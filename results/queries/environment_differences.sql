-- Provenance: What differs between the software and machines of two runs?
-- One row per property that differs: interpreter, platform, commit, package, environment variable, part of the machine.
-- NULL: not present on that side. Without $a and $b, the query compares the latest attempts on the two most recently
-- used pairs of software and machine. No rows: nothing differs.
-- $a = null: first characters of an attempt's id
-- $b = null: first characters of another attempt's id
WITH used AS (
    SELECT max(attempt_id) AS attempt_id, row_number() OVER (ORDER BY max(attempt_id) DESC) AS place
    FROM attempt GROUP BY env_id, hw_id
),
sides AS (
    SELECT 'a' AS side, coalesce(
        (SELECT max(attempt_id) FROM attempt WHERE starts_with(attempt_id, $a::VARCHAR)),
        (SELECT attempt_id FROM used WHERE place = 2 AND $a IS NULL)
    ) AS attempt_id
    UNION ALL
    SELECT 'b', coalesce(
        (SELECT max(attempt_id) FROM attempt WHERE starts_with(attempt_id, $b::VARCHAR)),
        (SELECT attempt_id FROM used WHERE place = 1 AND $b IS NULL)
    )
),
rows AS (
    SELECT s.side, s.attempt_id, e.*, h.* EXCLUDE (hw_id)
    FROM sides AS s
    JOIN attempt AS a USING (attempt_id)
    JOIN environment AS e USING (env_id)
    JOIN hardware AS h USING (hw_id)
),
facts AS (
    SELECT side, 'package' AS part, unnest(map_entries(packages::MAP(VARCHAR, VARCHAR)), recursive := true) FROM rows
    UNION ALL
    SELECT side, 'variable', unnest(map_entries(env_vars::MAP(VARCHAR, VARCHAR)), recursive := true) FROM rows
    UNION ALL
    SELECT side, part, key, value FROM (
        SELECT
            side, python, platform, git_commit AS commit, git_dirty::VARCHAR AS dirty, cpu, cores::VARCHAR AS cores,
            ram_bytes::VARCHAR AS ram_bytes, gpu, gpu_count::VARCHAR AS gpu_count, driver, cuda,
            threads::VARCHAR AS threads
        FROM rows
    ) UNPIVOT (value FOR key IN (
        python, platform, commit, dirty, cpu, cores, ram_bytes, gpu, gpu_count, driver, cuda, threads
    )) CROSS JOIN (SELECT 'machine and interpreter' AS part)
)
SELECT
    part, key AS name, max(value) FILTER (side = 'a') AS a, max(value) FILTER (side = 'b') AS b,
    (SELECT attempt_id FROM sides WHERE side = 'a') AS attempt_a,
    (SELECT attempt_id FROM sides WHERE side = 'b') AS attempt_b
FROM facts
WHERE (SELECT count(attempt_id) = 2 FROM sides)
GROUP BY part, key
HAVING a IS DISTINCT FROM b
ORDER BY part, name;
