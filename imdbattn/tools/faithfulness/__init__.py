"""Tests whether attention, and other scores of words, explain the decisions of classifiers."""
