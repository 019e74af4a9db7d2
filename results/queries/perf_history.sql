-- Cost and speed: How has the speed of ExitBench itself changed from commit to commit?
-- The benchmarks of `nox -s perf`, in the order measured on each machine: seconds (the median of a commit's runs), the
-- ratio to the previous commit, and other measured values next to their goals. Runs of different days also differ in
-- the load of the machine. `nox -s perf -- --against REV` tests whether a change is real.
-- $benchmark = *: benchmarks, a pattern
WITH measured AS (
    SELECT
        benchmark, cpu, gpu, threads, machine_id, commit, dirty, max(measured_at) AS measured_at, count(*) AS runs,
        median(median_s) AS median_s, arg_max(extra, measured_at) AS extra
    FROM perf
    WHERE benchmark GLOB $benchmark
    -- Uncommitted work differs from run to run.
    GROUP BY benchmark, cpu, gpu, threads, machine_id, commit, dirty, CASE WHEN dirty THEN perf_run_id END
)
SELECT
    benchmark, cpu, gpu, threads, left(commit, 10) AS commit, dirty, measured_at, runs, median_s,
    median_s / lag(median_s) OVER history AS times_before, (extra ->> 'measured')::DOUBLE AS measured,
    extra ->> 'unit' AS unit, (extra ->> 'at_least')::DOUBLE AS at_least, (extra ->> 'at_most')::DOUBLE AS at_most
FROM measured
WINDOW history AS (PARTITION BY benchmark, machine_id ORDER BY measured_at)
ORDER BY benchmark, cpu, gpu, threads, machine_id, measured_at;
