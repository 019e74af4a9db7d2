"""Declarations of arguments, help and examples per command. They import no large library, so that help is fast."""
