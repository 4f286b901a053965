"""Finished run folders -> report."""
