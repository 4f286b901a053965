"""Logs runs and comparisons to W&B."""
