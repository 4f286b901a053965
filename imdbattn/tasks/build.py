"""Builds objects from settings: a group with `_target_` names a class, and its other keys are the
arguments.

Shape suffixes: D vector width, V words, R words whose vectors are trained, P phrases, C classes.
"""

import importlib
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.data.glove import Glove
from imdbattn.data.ragged import as_tensor
from imdbattn.errors import UserError, naming
from imdbattn.nn.beyond.context import Context, Phrases
from imdbattn.nn.vectors import Embedding
from imdbattn.runs.run import Weights
from imdbattn.settings.keys import as_dict


def make(settings: Any, what: str, kind: type) -> Any:
    """`instantiate`. Raises UserError of one line that names `what`, or a `_target_` that is not a
    subclass of `kind`.

    settings: of the user, or of a run folder that `refuse_untrusted` has accepted.
    """
    with naming(what):
        # model=residual is the group model
        return instantiate(settings, what.partition("=")[0], kind)


def make_net(model: Any, others: Collection[str], *arguments: Any, **options: Any) -> nn.Module:
    """The net that the `model` settings describe. others: settings that are not arguments of its
    class.
    """
    what = f"model={model.name}"
    parts = {
        key: value for key, value in as_dict(model).items() if key not in ("name", "after", *others)
    }
    made = make(parts, what, nn.Module)
    with naming(what):
        net: nn.Module = made(*arguments, **options)
    return net


def instantiate(node: Any, key: str, kind: type) -> Any:
    """Settings with each group that has a `_target_` replaced by an object of that class.

    With `_partial_: true` it is a functools.partial instead. key: the dotted name of the settings.
    """
    if isinstance(node, list):
        return [instantiate(value, f"{key}.{place}", kind) for place, value in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    values = {name: instantiate(value, f"{key}.{name}", kind) for name, value in node.items()}
    if (target := values.pop("_target_", None)) is None:
        return values
    is_partial, found = values.pop("_partial_", False), class_at(target, key, kind)
    return partial(found, **values) if is_partial else found(**values)


def class_of(cfg: Any, key: str, kind: type) -> Any:
    """The class that the settings of a task (conf/task/) name for `key`: datamodule,
    lightning_module or predictor.
    """
    return class_at(cfg[key]._target_, key, kind)


def class_at(target: str, key: str, kind: type) -> type:
    """The class with a dotted path. Raises UserError if it cannot be imported, or is not a subclass
    of `kind`.
    """
    module, _, name = target.rpartition(".")
    remedy = (
        f"{target.partition('.')[0]} must be installed (pip install -e .), or its folder be in"
        " PYTHONPATH"
    )
    with naming(f"{key}._target_={target} cannot be imported", remedy):
        found: Any = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UserError(
            f"{key}._target_={target} is not a subclass of {kind.__module__}.{kind.__name__}"
        )
    return found


# --- the net of a classifier of reviews -----------------------------------------------------------


def build_net(
    model: Any, glove: Glove, classes: int, trained_R: Tensor | None, phrases: Phrases | None = None
) -> nn.Module:
    """The classifier that the `model` settings describe. trained_R: ids of the words whose vectors
    are trained.
    """
    shift_D, scale_D = torch.zeros(glove.vectors.shape[1]), torch.ones(glove.vectors.shape[1])
    if model.embedding.standardize:
        shift_D, scale_D = torch.tensor(glove.mean_D), 1 / torch.tensor(glove.std_D)
    embedding = Embedding(
        as_tensor(glove.vectors), shift_D, scale_D, trained_R, model.embedding.mixout
    )
    context, convolution = {}, as_dict(model).get("convolution")
    if phrases or convolution:
        made = make({"convolution": convolution}, f"model={model.name}", nn.Module)
        context["context"] = partial(Context, phrases=phrases, **made)
    return make_net(
        model,
        ("word_dropout", "embedding", "phrases", "convolution"),
        embedding,
        classes,
        **context,
    )


def trained_words(weights: Weights, embedding: str) -> Tensor | None:
    """The ids of the trained words, from weights; None if there are none. embedding: the name of
    the Embedding.
    """
    slot_V = weights.get(f"{embedding}.slot_V")
    return None if slot_V is None else slot_V.nonzero()[:, 0]


def batch_options(cfg: Any) -> dict[str, Any]:
    """Options of Ragged.batch for training and evaluation."""
    phrases = cfg.model.phrases if cfg.task == "reviews" else None
    return {
        "max_tokens": cfg.data.max_tokens,
        "head_share": cfg.data.head_share,
        # words of the longest phrase that precede its last
        "before": phrases.longest - 1 if phrases else 0,
        "multiple": cfg.data.pad_to,
    }
