"""Figures of Monotonic Early Exiting."""
