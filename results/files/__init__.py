"""Files and folders: atomic writes, regular files only, canonical JSON, CSV, size-limited Parquet."""
