"""The spool: one folder per attempt, columns of its Parquet files, and the process that writes it."""
