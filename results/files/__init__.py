"""Files and folders: atomic writes, regular files only, canonical JSON, CSV, Parquet within bounds."""
