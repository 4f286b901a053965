"""The net of a classifier of reviews, from settings or from a checkpoint.

Shape suffixes: D vector width, V words, R words whose vectors are trained, P phrases, C classes.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.data.glove import Glove
from imdbattn.data.ragged import as_tensor
from imdbattn.nn.beyond.context import Context
from imdbattn.nn.beyond.phrases import Phrases
from imdbattn.nn.vectors import Embedding
from imdbattn.settings.keys import as_dict
from imdbattn.tasks.build import make, make_net
from imdbattn.tasks.weights import Weights

ADDITIONS = ("channels", "convolution")  # settings of `model` for nn.beyond.context.Context


def build_net(
    model: Any, glove: Glove, classes: int, trained_R: Tensor | None, phrases: Phrases | None = None
) -> nn.Module:
    """The classifier that the `model` settings describe. trained_R: ids of the words whose vectors are trained."""
    additions = {key: value for key, value in as_dict(model).items() if key in ADDITIONS and value}
    shift_D, scale_D = torch.zeros(glove.vectors.shape[1]), torch.ones(glove.vectors.shape[1])
    if model.embedding.standardize:
        shift_D, scale_D = torch.tensor(glove.mean_D), 1 / torch.tensor(glove.std_D)
    embedding = Embedding(as_tensor(glove.vectors), shift_D, scale_D, trained_R, model.embedding.mixout)
    context = {}
    if additions or phrases:
        made = make(additions, f"model={model.name}", nn.Module)
        context["context"] = partial(Context, phrases=phrases, **made)
    return make_net(model, ("word_dropout", "embedding", "phrases", *ADDITIONS), embedding, classes, **context)


def trained_words(weights: Weights, embedding: str) -> Tensor | None:
    """The ids of the trained words, from weights; None if there are none. embedding: the name of the Embedding."""
    slot_V = weights.get(f"{embedding}.slot_V")
    return None if slot_V is None else slot_V.nonzero()[:, 0]


def batch_options(cfg: Any) -> dict[str, Any]:
    """Options of Ragged.batch for training and evaluation."""
    phrases = cfg.model.phrases if cfg.task == "reviews" else None
    return {
        "max_tokens": cfg.data.max_tokens,
        "head_share": cfg.data.head_share,
        "before": phrases.longest - 1 if phrases else 0,  # words of the longest phrase that precede its last
        "multiple": cfg.data.pad_to,
    }
