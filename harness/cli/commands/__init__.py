"""Implementations of the commands, called by `cli.main` with the parsed arguments."""
