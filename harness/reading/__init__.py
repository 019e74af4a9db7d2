"""Readers of user files: TOML tables with the line of every key, checked JSON values, regular files only."""
