"""What figures share: style, colours, panels, one picture for light and dark."""
