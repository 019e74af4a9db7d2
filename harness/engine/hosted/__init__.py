"""The hosted engine: runs any decoder of transformers block by block, hosted by the model's own forward pass.

transformers prepares masks, rotary angles, position biases and layer types. Every block's ``forward`` is wrapped, so
that a block can be run later, on some rows, with the recorded arguments.
"""
