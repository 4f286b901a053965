"""Sweeps, whose jobs are runs in child processes."""
