"""Additions to the ladder: rotary positions, distances, queries of labels, convolution, phrases, masked words."""

from imdbattn.nn.beyond.attention import ProjectedAttention, ProjectedLayer, RotaryAttention, RotaryLayer
from imdbattn.nn.beyond.context import Context, Convolution
from imdbattn.nn.beyond.distances import ClippedDistances, Distances
from imdbattn.nn.beyond.label_query import LabelQueryClassifier, LabelQueryPooling
from imdbattn.nn.beyond.masked_words import MaskedWords
from imdbattn.nn.beyond.phrases import LogCounts, Phrases, count_phrases
from imdbattn.nn.beyond.uniform import Uniform
