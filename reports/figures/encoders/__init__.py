"""Figures of encoder classifiers, whose texts exit as whole sequences."""
