"""The DuckDB database: connection, views and comments, access, a sandbox for third-party files."""
