"""Figures of self-supervised early exits."""
