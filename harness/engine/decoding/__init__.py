"""Early-exit decoding, token by token: the loop, deferred tokens, speculation, and probes of every block."""
