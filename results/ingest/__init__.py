"""Rows into the database: from the spool, from snapshots and databases of others, and from nothing (rebuild)."""
