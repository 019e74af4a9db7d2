"""Planning: read a suite's TOML, expand it into cells, find their states, and check conformance of methods."""
