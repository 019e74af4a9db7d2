"""Figures of Early Exit Is a Natural Capability."""
