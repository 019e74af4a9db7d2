"""Reading what users write: TOML tables with the line of every key, JSON values checked, regular files only."""
