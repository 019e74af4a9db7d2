"""Keeping it sound: integrity checks, garbage collection, exports other tools read."""
