"""What trainings minimise: losses of blocks and exit heads, distillation, blocks that are skipped at random."""
