"""Python API behind `import exitbench as eb`: models, answers, probes, runs, results."""
