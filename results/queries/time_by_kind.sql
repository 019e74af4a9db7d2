-- Provenance: How was the compute time spent?
-- By model, kind of cell and status: number of attempts, hours in total, seconds per attempt, and the largest peak
-- memory. Time of attempts that did not succeed was wasted. Disk space is not in the database: use `du -sh runs/spool`.
SELECT
    m.name AS model, c.kind, a.status, count(*) AS attempts,
    sum(epoch(a.ended_at) - epoch(a.started_at)) / 3600 AS hours,
    median(epoch(a.ended_at) - epoch(a.started_at)) AS median_seconds,
    max(epoch(a.ended_at) - epoch(a.started_at)) AS longest_seconds, max(a.peak_rss_bytes) / 1e9 AS peak_gb
FROM attempt AS a
JOIN cell AS c USING (cell_id)
JOIN model_artifact AS m USING (model_id)
GROUP BY m.name, c.kind, a.status
ORDER BY hours DESC, m.name, c.kind, a.status;
