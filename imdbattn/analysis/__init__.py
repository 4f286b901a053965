"""Figures and pages from finished runs; no Lightning."""
