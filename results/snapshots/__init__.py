"""Snapshots of results that come with ExitBench: measured settings, without records of data sets."""
