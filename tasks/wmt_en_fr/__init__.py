"""WMT14 English to French, and any other English-French sentence pairs."""
