"""The first screen of the page: what ran, and what to use."""
