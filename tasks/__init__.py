"""The tasks: documents, prompts, references, metrics, and the sources of the records."""
