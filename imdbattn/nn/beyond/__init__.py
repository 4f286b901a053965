"""Additions to the ladder: convolution, phrases, distances, masked words, uniform attention."""

from imdbattn.nn.beyond.context import Context, Convolution
from imdbattn.nn.beyond.distances import Distances
from imdbattn.nn.beyond.masked_words import MaskedWords
from imdbattn.nn.beyond.phrases import LogCounts, Phrases, count_phrases
from imdbattn.nn.beyond.uniform import Uniform

__all__ = [
    "Context",
    "Convolution",
    "Distances",
    "LogCounts",
    "MaskedWords",
    "Phrases",
    "Uniform",
    "count_phrases",
]
