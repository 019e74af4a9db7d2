"""Training of encoders that classify whole texts, and of their off-ramps."""
