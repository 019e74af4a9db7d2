"""Analyses beyond a single query: selections of runs, comparisons, traces, repeats, replays."""
