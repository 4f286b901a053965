"""Describes a trained classifier to the JavaScript network of the page (static/network.js).

Shape suffixes: D width, V rows of the vectors, R rows with an offset.
"""

from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.errors import UserError
from imdbattn.nn import ladder, scores
from imdbattn.nn.beyond import attention as beyond
from imdbattn.nn.beyond.tuned_vectors import TunedEmbedding

# The classes that static/network.js computes. A subclass may compute something else.
KNOWN = {
    *(ladder.Classifier, beyond.LabelQueryClassifier),
    *(ladder.NoPositions, ladder.SinusoidalPositions, ladder.LearnedPositions),
    *(ladder.PlainLayer, ladder.ResidualLayer, beyond.ProjectedLayer, beyond.RotaryLayer),
    *(ladder.SelfAttention, beyond.ProjectedAttention, beyond.RotaryAttention),
    *(beyond.Distances, beyond.ClippedDistances),
    *(scores.ScaledDot, scores.Dot, scores.Bilinear, scores.Additive, beyond.Uniform),
    *(ladder.MeanPooling, ladder.ClsPooling, ladder.LearnedQueryPooling),
    *(ladder.TextQueryPooling, beyond.LabelQueryPooling),
}
# Weights that the description or the vectors of the page replace.
OMITTED = ("embedding.slot_V", "embedding.offset_RD", "embedding.vectors_VD")


def known_class(part: object) -> str:
    """Returns the name of the class of a part. Raises UserError unless network.js computes it."""
    if type(part) not in KNOWN:
        name = f"{type(part).__module__}.{type(part).__qualname__}"
        raise UserError(f"{name} cannot be computed in the browser")
    return type(part).__name__


def described(net: Any) -> dict[str, Any]:
    """Returns the parts of a classifier by the names of their classes, for static/network.js.

    Raises UserError for a part that network.js does not compute: a convolution, a GRU, phrases, or
    a custom part.
    """
    known_class(net)
    if net.context is not None:
        known_class(net.context.phrases or net.context.mixer)
    positions = net.positions
    about: dict[str, Any] = {"kind": known_class(positions)}
    if isinstance(positions, ladder.SinusoidalPositions):
        about["scale"] = positions.scale
        about["length"] = len(positions.pe_TD)
    attention = getattr(net.pooling, "attention", None)
    return {
        "width": net.head.in_features,
        "positions": about,
        "layers": [described_layer(layer) for layer in net.layers],
        "pooling": {
            "kind": known_class(net.pooling),
            "score": known_class(attention.score) if attention else None,
        },
    }


def described_layer(layer: Any) -> dict[str, Any]:
    """Returns the parts of a layer."""
    known_class(layer)
    distances = layer.f.distances
    return {
        "skip": layer.skip,
        "attention": known_class(layer.f),
        "heads": layer.f.heads,
        "score": known_class(layer.f.attention.score),
        "distances": None if distances is None else known_class(distances),
    }


def weights_of(net: nn.Module) -> dict[str, Tensor]:
    """Returns all weights except the vectors of words, as float32 matrices; a vector is one row."""
    weights = {}
    for name, weight in net.state_dict().items():
        if name not in OMITTED:
            weights[name] = torch.atleast_2d(weight.detach().float().cpu())
    return weights


def offsets_VD(net: Any) -> Tensor | None:
    """Returns the trained offset of each row of the vectors, or None if the vectors are frozen."""
    embedding = net.embedding
    if not isinstance(embedding, TunedEmbedding):
        return None
    return embedding.offset_RD.detach().float().cpu()[embedding.slot_V.long().cpu()]
