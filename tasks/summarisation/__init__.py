"""Summaries of texts: SAMSum, and data sets that differ from it in their fields alone."""
