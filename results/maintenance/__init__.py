"""Maintenance: integrity checks, garbage collection, exports for other tools."""
