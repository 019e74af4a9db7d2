"""Planning: reading a suite's TOML, expanding it into cells, their states, and conformance of methods."""
