"""The DuckDB database: connection, views and comments, access, foreign files read in a sandbox."""
