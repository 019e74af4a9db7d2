"""The tasks: what is asked, what counts as right, and where the records come from."""
