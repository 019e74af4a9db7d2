"""Running cells: workers, passes over documents, timing, executors. Results are written to the spool."""
