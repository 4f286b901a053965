"""Comparisons of runs: statistics, figures and pages."""
