"""Fill the database from the spool and from third-party snapshots, and rebuild it from the spool."""
