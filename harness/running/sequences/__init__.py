"""Encoders: cells whose documents are classified as wholes."""
