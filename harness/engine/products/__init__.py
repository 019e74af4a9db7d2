"""Ways to multiply by weights that come to the same numbers, and which of them is fastest on the machine that runs."""
