"""The DuckDB database: connection, views and comments, access, a sandbox for files of others."""
