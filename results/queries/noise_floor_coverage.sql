-- Cost and speed: How often do full depth's timings differ significantly from each other?
-- Every timing session times full depth against itself, where the true ratio is 1. Sessions on a busy machine are left
-- out. share: share of these 95% intervals that do not contain 1, nominally 0.05, with its exact (Clopper-Pearson) 95%
-- interval from low to high. chance: probability of at least this many such intervals if the nominal rate holds.
-- documents: fewest to most documents, or batches of documents, per session.
WITH counted AS (
    SELECT
        n.suite, r.cpu, r.gpu, count(*) AS intervals, count(*) FILTER (NOT 1 BETWEEN ci_low AND ci_high) AS missed,
        min(n.n) || ' to ' || max(n.n) AS documents, median(ci_high - ci_low) AS median_width
    FROM metric_values AS n JOIN (SELECT attempt_id, cpu, gpu FROM runs) AS r USING (attempt_id)
    WHERE n.metric = 'aa_speedup' AND n.is_current AND n.ci_low IS NOT NULL
        AND attempt_id NOT IN (SELECT attempt_id FROM qc WHERE rule = 'busy_machine')
    GROUP BY ALL
),
-- Binomial tails at every p; the exact interval contains each p for which both are at least 2.5%.
tails AS (
    SELECT
        suite, cpu, gpu, p, coalesce(sum(mass) FILTER (k <= missed), 0) AS so_few, coalesce(sum(mass) FILTER (k >= missed), 0) AS so_many
    FROM (
        SELECT
            *, exp(lgamma(intervals + 1) - lgamma(k + 1) - lgamma(intervals - k + 1) + k * ln(p) + (intervals - k) * ln(1 - p)) AS mass
        FROM (SELECT *, unnest(range(0, intervals + 1)) AS k FROM counted)
        CROSS JOIN (SELECT unnest(range(1, 2000)) / 2000 AS p)
    )
    GROUP BY ALL
)
SELECT
    c.suite, c.cpu, c.gpu, c.documents, c.intervals, c.missed, c.missed / c.intervals AS share,
    CASE WHEN c.missed = 0 THEN 0 ELSE min(t.p) FILTER (t.so_many >= 0.025) END AS low,
    CASE WHEN c.missed = c.intervals THEN 1 ELSE max(t.p) FILTER (t.so_few >= 0.025) END AS high,
    max(t.so_many) FILTER (t.p = 0.05) AS chance, c.median_width
FROM counted AS c JOIN tails AS t ON t.suite = c.suite AND t.cpu IS NOT DISTINCT FROM c.cpu AND t.gpu IS NOT DISTINCT FROM c.gpu
GROUP BY c.suite, c.cpu, c.gpu, c.documents, c.intervals, c.missed, c.median_width
ORDER BY c.suite, c.cpu, c.gpu;
