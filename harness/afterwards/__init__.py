"""What is done with stored results: rescoring, part-of-speech tags, reruns that are compared."""
