"""Executors, which run the cells of a plan: on this machine, or on a cluster's nodes.

The contract between planner and worker is files (`exitbench.harness.cells.job`), so the same worker runs under all
executors.
"""
