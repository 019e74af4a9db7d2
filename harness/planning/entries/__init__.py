"""Readers of task tables in a suite file: built-in tasks, lm-eval's, and tasks declared in TOML."""
