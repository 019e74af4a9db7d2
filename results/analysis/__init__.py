"""Questions to the database that are more than a query: selections of runs, comparisons, traces, repeats, replays."""
