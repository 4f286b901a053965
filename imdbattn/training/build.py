"""From settings to objects. The only module that calls Hydra's `instantiate`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.utils import instantiate

from imdbattn.data.glove import Glove
from imdbattn.data.prepare import Corpus
from imdbattn.data.ragged import as_tensor
from imdbattn.data.tokenization import FIRST_WORD
from imdbattn.errors import UserError
from imdbattn.nn.embedding import Embedding
from imdbattn.training.data import ReviewData
from imdbattn.training.module import ReviewClassifier

TRUSTED = ("imdbattn.", "torch.", "lightning.")  # a config may name classes of these packages only


def make(settings: Mapping[str, Any], what: str) -> Any:
    """`instantiate` for trusted targets; what the class complains of becomes a UserError naming `what`."""
    check_targets(settings, what)
    try:
        return instantiate(settings, _convert_="all")
    except Exception as error:
        raise UserError(f"{what}: {reason(error)}") from error


def check_targets(node: Any, key: str) -> None:
    """Raises UserError for a `_target_` outside the trusted packages: run folders come from elsewhere, too."""
    if isinstance(node, Mapping):
        target = node.get("_target_")
        if target is not None and not str(target).startswith(TRUSTED):
            raise UserError(f"{key}._target_={target} is not from {', '.join(TRUSTED)} and will not be called")
        for name, value in node.items():
            check_targets(value, f"{key}.{name}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            check_targets(value, f"{key}[{number}]")


def reason(error: BaseException) -> str:
    """The innermost cause of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__


def build_data(cfg: Mapping[str, Any], corpus: Corpus) -> ReviewData:
    names = ("batch_tokens", "eval_batch_tokens", "max_tokens", "head_share", "word_dropout")
    return ReviewData(corpus, seed=cfg["seed"], **{name: cfg["data"][name] for name in names})


def build_net(model: Mapping[str, Any], glove: Glove, classes: int, tuned_R: torch.Tensor | None) -> torch.nn.Module:
    """The classifier that the `model` settings describe; `tuned_R` are the ids of the words whose vectors train."""
    parts = {key: value for key, value in model.items() if key not in ("name", "embedding")}
    shift_D, scale_D = torch.zeros(glove.vectors.shape[1]), torch.ones(glove.vectors.shape[1])
    if model["embedding"]["standardize"]:
        shift_D, scale_D = torch.tensor(glove.mean_D), 1 / torch.tensor(glove.std_D)
    embedding = Embedding(as_tensor(glove.vectors), shift_D, scale_D, tuned_R)
    try:
        return make(parts, f"model={model['name']}")(embedding, classes)
    except (TypeError, ValueError) as error:
        raise UserError(f"model={model['name']}: {reason(error)}") from error


def build_module(cfg: Mapping[str, Any], net: torch.nn.Module, glove: Glove, labels: list[str]) -> ReviewClassifier:
    facts = {"config": dict(cfg), "vectors": glove.fingerprint, "labels": labels}
    rest = {name: cfg[name] for name in ("warmup", "decay", "embedding_lr", "label_smoothing")}
    return ReviewClassifier(net, make(cfg["optim"], "optim"), facts, **rest)


def new_module(cfg: Mapping[str, Any], corpus: Corpus) -> ReviewClassifier:
    """An untrained module for a corpus."""
    tuned_R = None
    if cfg["model"]["embedding"]["trainable"]:
        seen = corpus.splits["train"].ids.unique()
        tuned_R = seen[seen >= FIRST_WORD].long()
    net = build_net(cfg["model"], corpus.glove, len(corpus.label_names), tuned_R)
    return build_module(cfg, net, corpus.glove, corpus.label_names)


def trained_module(cfg: Mapping[str, Any], checkpoint: Path, glove: Glove) -> ReviewClassifier:
    """The module of a finished run, in evaluation mode. Needs no reviews, only the vectors.

    Reads tensors and plain values only, never code. Raises UserError when the file cannot be read, or belongs to
    another model or other vectors.
    """
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True)
        weights, facts = content["state_dict"], content["hyper_parameters"]
        slot_V = weights.get("net.embedding.slot_V")
        net = build_net(cfg["model"], glove, len(facts["labels"]), None if slot_V is None else slot_V.nonzero()[:, 0])
        module = build_module(cfg, net, glove, facts["labels"])
        module.on_load_checkpoint(content)
        module.load_state_dict(weights)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{checkpoint} cannot be loaded: {reason(error)[:300]}") from error
    return module.eval()


def build_trainer(settings: Mapping[str, Any], **more: Any) -> L.Trainer:
    """Lightning's Trainer; `more` are the arguments that are not settings (callbacks, loggers, folders)."""
    partial = make({**settings, "_partial_": True}, "trainer")
    try:
        return partial(use_distributed_sampler=False, **more)
    except Exception as error:
        raise UserError(f"trainer: {reason(error)}") from error
