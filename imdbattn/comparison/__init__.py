"""Compares finished run folders and writes a report."""
