"""Names of models and settings, and functions on nested settings."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1]
RUNGS = (  # models in conf/model that form the ladder, in the order in which it is built
    "mean",
    "learned_query",
    "text_query",
    "base",
    "base_pe",
    "residual",
    "residual_pe",
    "residual_learned",
    "residual_cls",
    "residual_pe_cls",
)
BEYOND = (  # models in conf/model with trained vectors or counts of phrases
    "tuned_mean",
    "log_counts_mean",
    "tuned",
    "convolved",
    "bigrams",
    "log_counts",
    "wide",
    "pretrained",
)
WRITERS = (  # encoder-decoders in conf/model
    "seq2seq",
    "seq2seq_attention",
    "seq2seq_attention_dot",
    "seq2seq_attention_scaled",
    "seq2seq_attention_additive",
    "seq2seq_bahdanau",
)
NO_EFFECT = (  # settings that do not change the numbers of a result
    "hydra",
    "logger",
    "resume",
    "save_minutes",
    "threads",
    "trust",
    "test",
    "pictures",
    "data.cache_dir",
    "data.hub_timeout",
    "trainer.enable_progress_bar",
    "trainer.enable_model_summary",
    "trainer.log_every_n_steps",
    "trainer.profiler",
)
NAME = r"\w[\w.-]{0,99}"  # of a model: part of a folder's name
SOURCES = ("init", "data.path", "data.source", "data.glove.path", "data.glove.source")  # compared by fingerprints


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one dict with dotted keys. Lists remain values."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {prefix + key: value}
    return values


def within(key: str, *names: str) -> bool:
    """Whether a dotted key is one of `names`, or in a group of that name."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def without(settings: Mapping[str, Any], *skipped: str) -> dict[str, Any]:
    """The settings, flat, without the keys and groups in `skipped`."""
    return {key: value for key, value in flat(settings).items() if not within(key, *skipped)}


def variant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings that are equal in runs that differ only in their seed and in the location of their files."""
    return without(settings, "seed", *NO_EFFECT, *SOURCES)


def digest(settings: Mapping[str, Any]) -> str:
    """Six hex digits of all settings that change results, except the seed: part of the name of a job's folder."""
    return hashlib.sha256(json.dumps(without(settings, "seed", *NO_EFFECT), default=str).encode()).hexdigest()[:6]


def overlay(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`settings` with those values of `changes` that are not None, recursively."""
    merged = dict(settings)
    for key, value in changes.items():
        if isinstance(value, dict):
            merged[key] = overlay(settings.get(key) or {}, value)
        elif value is not None:
            merged[key] = value
    return merged


def as_text(value: Any) -> str:
    """A value as on the command line."""
    return "null" if value is None else str(value)
