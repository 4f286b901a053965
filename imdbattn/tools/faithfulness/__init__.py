"""Tests whether attention weights, and other scores of words, explain the decisions of trained
classifiers.
"""
