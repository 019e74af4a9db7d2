"""The spool: a folder an attempt, columns of its Parquet files, who is at work on it."""
