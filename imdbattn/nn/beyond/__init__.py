"""Additions to the ladder: other attention, phrases, convolution, a GRU and masked words."""
