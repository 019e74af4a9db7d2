"""Blocks and gates on static buffers as CUDA graphs; off unless asked for."""
