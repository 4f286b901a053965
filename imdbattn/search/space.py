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
from imdbattn.run_folder import is_debug
from imdbattn.settings.cli import PATHS, composed, plain_dict, quote
from imdbattn.settings.keys import absolute, as_dict, as_text, explicit, flat, within
from imdbattn.settings.safety import refuse_untrusted
from imdbattn.settings.schema import Search, validate

Space = dict[str, BaseDistribution]


def check(cfg: Search, file: Path) -> tuple[Space, DictConfig]:
    """The space, and the settings that all trials share. Raises UserError for wrong ones.

    file: their source, if a search is resumed. If data.source is `auto`, one source is chosen for all trials. The paths
    of a new search become absolute.
    """
    if not cfg.space:
        raise UserError("the space is empty: add +search=residual, or space.model.layers=[1,2,3]")
    for name in set() if cfg.resume else {*PATHS} & {*cfg.space}:
        if isinstance(values := cfg.space[name], list):
            cfg.space[name] = [one if one in (None, "hub") else absolute(str(one)) for one in values]
    space = {name: distribution(name, values) for name, values in cfg.space.items()}
    for word in (*space, *cfg.train):
        if within(word.lstrip("+").partition("=")[0], "seed", "resume", "test", "hydra"):
            raise UserError(f"{word}: the search decides this setting for each trial: omit it")
    # Points with both ends of each range, and all values of each list
    ends: dict[str, Any] = {
        name: getattr(one, "choices", ()) or [getattr(one, end) for end in ("low", "high")]
        for name, one in space.items()
    }
    for place in range(max(map(len, ends.values()))):
        point = {name: values[min(place, len(values) - 1)] for name, values in ends.items()}
        settings = compose([*cfg.train, *as_words(point)])
        if cfg.resume:
            refuse_untrusted(settings, file, cfg.trust)
    if is_debug(settings):
        raise UserError("debug runs have no results to search by: omit debug=")
    if source := decided_source(settings):
        cfg.train.append(f"data.source={source}")
    settings = compose(cfg.train)
    if not cfg.resume:
        given, whole = flat(as_dict(settings)), flat(explicit(settings, None))
        paths = {name: path for name, path in whole.items() if name in given and path != given[name]}
        words = [word for word in cfg.train if word.lstrip("+").partition("=")[0] not in paths]
        cfg.train[:] = [*words, *(quote(f"{name}={path}", PATHS) for name, path in paths.items())]
    return space, settings


def distribution(name: str, values: Any) -> BaseDistribution:
    """Raises UserError unless there are several values to choose from."""
    one: BaseDistribution
    try:
        if isinstance(values, list):
            one = CategoricalDistribution(list(dict.fromkeys(values)))
        else:
            whole = all(isinstance(values[end], int) for end in ("low", "high"))
            one = (IntDistribution if whole else FloatDistribution)(**values)
        if one.single():
            raise ValueError(f"give a single value as a setting, {name}=...")
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        needed = "a list of several plain values, or a range such as {low: 1e-4, high: 1e-2, log: true}"
        raise UserError(f"space.{name}={values} must be {needed} ({type(error).__name__}: {error})") from error
    return one


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
        settings = composed("train", words)
    except UserError as error:
        reason = str(error)
        if unknown := re.match(r"there is no setting (\w+);", reason):
            near = difflib.get_close_matches(unknown[1], Search.model_fields, 1, 0.8)
            reason = f"{unknown[0]} the nearest is {near[0]}" if near else reason
        raise UserError(reason) from error
    return validate(plain_dict(settings))
