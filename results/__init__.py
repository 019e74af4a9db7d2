"""The result database: spool, ingest, catalogue, views, saved queries and statistics. Never imports torch."""
