"""Readers of task tables in a suite file: built-in tasks, lm-eval's tasks, and tasks declared in TOML."""
