"""Rows into the database: from the spool, from snapshots of others, and from nothing (rebuild)."""
