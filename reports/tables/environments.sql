-- Software and machines of the attempts: one row per environment and machine; times are UTC.
WITH use AS (
    SELECT env_id, hw_id, count(*) AS attempts, min(started_at) AS first_start, max(ended_at) AS last_end
    FROM attempt
    GROUP BY env_id, hw_id
)
SELECT git_commit, git_dirty, attempts,
       strftime(first_start, '%Y-%m-%d %H:%M') AS first_start, strftime(last_end, '%Y-%m-%d %H:%M') AS last_end,
       python, platform, CAST(packages AS VARCHAR) AS packages, CAST(env_vars AS VARCHAR) AS env_vars,
       cpu, cores, threads, ram_bytes, gpu, gpu_count, driver, cuda
FROM use
JOIN environment USING (env_id)
JOIN hardware USING (hw_id)
ORDER BY use.first_start, use.last_end, env_id, hw_id;
