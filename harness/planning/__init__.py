"""From a suite to a plan: TOML, expansion into cells, what is new, done, stale or failed, and contracts of methods."""
