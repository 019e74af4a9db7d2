"""Definition of a cell and its id: settings, seeds, documents, prompts, and the worker's job."""
