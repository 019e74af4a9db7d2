"""The DuckDB database: connection, schema and migrations, views, access, foreign files read in a sandbox."""
