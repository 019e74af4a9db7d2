"""Executors, which run the cells of a plan on this machine or on a cluster's nodes.

Planner and worker communicate by files (`exitbench.harness.cells.job`), so the same worker runs under all executors.
"""
