"""Ways to multiply by weights with the same results, and the choice of the fastest on this machine."""
