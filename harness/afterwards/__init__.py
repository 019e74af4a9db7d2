"""Postprocessing of stored results: rescoring, part-of-speech tags, replays, tuning, reproducibility checks."""
