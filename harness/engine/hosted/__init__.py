"""The hosted engine: any decoder of transformers run block by block, with its own forward pass as the host.

transformers prepares masks, rotary angles, position biases and layer types. Every block's ``forward`` is wrapped, so
that a block can be run later, on some rows, with the recorded arguments.
"""
