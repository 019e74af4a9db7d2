"""Early-exit decoding, token by token: the decode loop, deferred tokens, draft verification, and per-block probes."""
