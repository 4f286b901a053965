"""The space of a search: setting -> a list of values, or a range {low, high} with log: true or step."""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from imdbattn.data.reviews import decided_source
from imdbattn.errors import UserError
from imdbattn.settings.cli import composed, plain_dict, quote
from imdbattn.settings.keys import as_text, within
from imdbattn.settings.safety import refuse_untrusted
from imdbattn.settings.schema import Search, validate

Space = dict[str, BaseDistribution]


def check(cfg: Search, file: Path) -> tuple[Space, DictConfig]:
    """The space, and the settings that all trials share. Raises UserError for wrong ones.

    file: their source, if a search is resumed. If data.source is `auto`, one source is chosen for all trials.
    """
    if not cfg.space:
        raise UserError("the space is empty: add +search=residual, or space.model.layers=[1,2,3]")
    space = {name: distribution(name, values) for name, values in cfg.space.items()}
    for word in (*space, *cfg.train):
        if within(word.lstrip("+").partition("=")[0], "seed", "resume", "test", "hydra"):
            raise UserError(f"{word}: the search decides this setting for each trial: omit it")
    # Points with both ends of each range, and all values of each list
    ends: list[Any] = [getattr(one, "choices", ()) or [vars(one)["low"], vars(one)["high"]] for one in space.values()]
    for place in range(max(map(len, ends))):
        point = [values[min(place, len(values) - 1)] for values in ends]
        settings = compose([*cfg.train, *as_words(dict(zip(space, point, strict=True)))])
        if cfg.resume:
            refuse_untrusted(settings, file, cfg.trust)
    if source := decided_source(settings):
        cfg.train.append(f"data.source={source}")
    return space, compose(cfg.train)


def distribution(name: str, values: Any) -> BaseDistribution:
    if isinstance(values, list):
        return CategoricalDistribution(values)
    if not isinstance(values, Mapping) or not {"low", "high"} <= values.keys():
        raise UserError(f"space.{name}={values} must be a list, or a range such as {{low: 1e-4, high: 1e-2}}")
    whole = all(isinstance(values[end], int) for end in ("low", "high"))
    return (IntDistribution if whole else FloatDistribution)(**values)


def as_words(params: Mapping[str, Any]) -> list[str]:
    """Settings as on a command line; numbers longer than ten characters get four digits."""

    def word(name: str, value: Any) -> str:
        if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
            return quote(f"{name}={value}", [name])
        long = isinstance(value, float) and len(repr(value)) > 10
        return f"{name}={value:.4g}" if long else f"{name}={as_text(value)}"

    return [word(name, value) for name, value in params.items()]


def compose(words: Sequence[str]) -> DictConfig:
    """The settings of `python -m imdbattn.train words...`. Raises UserError if they are wrong."""
    try:
        return validate(plain_dict(composed("train", words)))
    except UserError as error:
        unknown = re.match(r"there is no setting (\w+);", str(error))
        if unknown and (near := difflib.get_close_matches(unknown[1], Search.model_fields, 1, 0.8)):
            raise UserError(f"{unknown[0]} the nearest is {near[0]}") from error
        raise
