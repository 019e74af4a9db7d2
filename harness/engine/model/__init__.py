"""The lean engine: a transformer whose blocks and heads run one at a time, with its weights, KV cache and cost."""
