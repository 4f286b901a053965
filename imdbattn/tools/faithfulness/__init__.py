"""Tests whether attention and other attributions explain the decisions of classifiers."""
