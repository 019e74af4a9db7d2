-- Processor time of all threads of the process during a timed phase; NULL in attempts of before. Where it is much less than the time
-- that passed, other processes held the cores.
ALTER TABLE timing_sample ADD COLUMN cpu_ns BIGINT;
