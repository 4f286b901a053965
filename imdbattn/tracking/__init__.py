"""Loggers of runs, and what W&B shows of runs and comparisons."""
