"""GLUE: sentences and pairs of sentences to be classified, and one set of pairs to be rated."""
