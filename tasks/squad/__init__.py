"""SQuAD v1.1: extractive question answering."""
