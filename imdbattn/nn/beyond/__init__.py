"""Additions to the ladder: rotary positions, distances, queries of labels, convolution, phrases, masked words."""

from imdbattn.nn.beyond.attention import (
    ClippedDistances,
    Distances,
    LabelQueryClassifier,
    LabelQueryPooling,
    ProjectedAttention,
    ProjectedLayer,
    RotaryAttention,
    RotaryLayer,
    Uniform,
)
from imdbattn.nn.beyond.context import Context, Convolution
from imdbattn.nn.beyond.masked_words import MaskedWords
from imdbattn.nn.beyond.phrases import Phrases, count_phrases
