"""Statistics of plain numbers: confidence intervals, paired tests, risk control, stability of predictions."""
