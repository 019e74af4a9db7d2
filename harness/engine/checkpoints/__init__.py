"""Read Hugging Face checkpoints: configuration, weights, model families, tokenizer, content digests, hub downloads."""
