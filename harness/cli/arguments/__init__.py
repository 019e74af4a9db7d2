"""Declarations of arguments, help and examples per command. Imports nothing heavy, so that help is fast."""
