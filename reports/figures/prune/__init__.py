"""Figures of vocabulary pruning and contrastive decoding."""
