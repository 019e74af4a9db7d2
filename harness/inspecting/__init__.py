"""Inspection of a checkpoint before any run: architecture, engines and runnable methods (`exitbench inspect`)."""
