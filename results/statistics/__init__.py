"""Statistics: confidence intervals, paired tests, risk control, stability of predictions. Numbers in, numbers out."""
