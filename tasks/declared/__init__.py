"""Tasks that a TOML file describes: fields of local records, a prompt template, metrics. No code."""
