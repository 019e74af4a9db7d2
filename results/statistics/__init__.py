"""Statistics: confidence intervals, paired tests, risk control, when predictions settle. Numbers in, numbers out."""
