"""Additions to the ladder: rotary positions, distances, queries of labels, convolution, phrases,
masked words.
"""
