"""Files of a Hugging Face checkpoint: configuration, safetensors, families, tokenizer, digests."""
