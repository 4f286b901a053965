"""Additions beyond the ladder."""
