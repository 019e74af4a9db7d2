"""Processes that end together: interrupts, a lifeline to the parent, advisory file locks released on process death."""
