"""ExitBench: a reproducible benchmark harness and result database for early-exit methods."""

__version__ = "0.1.0"
