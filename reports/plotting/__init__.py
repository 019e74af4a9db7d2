"""Shared drawing code of figures: style, colours, panels, one picture for light and dark themes."""
