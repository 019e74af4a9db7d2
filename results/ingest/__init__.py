"""Rows of the database: from the spool, from third-party snapshots, and rebuilding from the spool."""
