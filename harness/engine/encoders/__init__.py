"""Encoder-only classifiers and regressors of transformers, run block by block on the texts that have not exited."""
