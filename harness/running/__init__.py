"""Running cells: workers, passes over documents, timing, executors. Raw results go to a folder, the spool."""
