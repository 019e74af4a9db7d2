"""What one cell asks for and by which id it is known: settings, seeds, documents, prompts, the worker's job."""
