-- Cost and speed: How has the speed of ExitBench itself gone from commit to commit?
-- The benchmarks of `nox -s perf`, each on each machine in the order measured: seconds (the median of a commit's
-- runs), times those of the commit before it, and what was measured besides, beside its goal. Runs of different days
-- differ by what else the machine did: `nox -s perf -- --against REV` tells whether a change is one.
-- $benchmark = *: benchmarks, a pattern
WITH measured AS (
    SELECT
        benchmark, cpu, gpu, threads, machine_id, commit, dirty, max(measured_at) AS measured_at, count(*) AS runs,
        median(median_s) AS median_s, arg_max(extra, measured_at) AS extra
    FROM perf
    WHERE benchmark GLOB $benchmark
    -- Work that was not committed is not the same from run to run.
    GROUP BY benchmark, cpu, gpu, threads, machine_id, commit, dirty, CASE WHEN dirty THEN perf_run_id END
)
SELECT
    benchmark, cpu, gpu, threads, left(commit, 10) AS commit, dirty, measured_at, runs, median_s,
    median_s / lag(median_s) OVER history AS times_before, (extra ->> 'measured')::DOUBLE AS measured,
    extra ->> 'unit' AS unit, (extra ->> 'at_least')::DOUBLE AS at_least, (extra ->> 'at_most')::DOUBLE AS at_most
FROM measured
WINDOW history AS (PARTITION BY benchmark, machine_id ORDER BY measured_at)
ORDER BY benchmark, cpu, gpu, threads, machine_id, measured_at;
