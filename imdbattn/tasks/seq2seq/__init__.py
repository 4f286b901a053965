"""Pairs of sequences: reversal of strings, and translation."""
