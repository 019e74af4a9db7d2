"""Runs things: engine, decode loop, cells, suites, workers, training, the command line."""
