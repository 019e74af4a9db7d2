"""Running cells: workers, passes over documents, timing, executors. What is written goes to the spool."""
