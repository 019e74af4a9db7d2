-- Provenance: Where did the hours go?
-- By model, kind of cell and how attempts ended: attempts, hours, seconds of one, and the largest peak of memory.
-- Time of attempts that did not end well was spent in vain. Where the disk space goes is known to the file system
-- alone: `du -sh runs/spool`.
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
