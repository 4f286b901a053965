"""The space of a search: setting -> a list of values, or a range {low, high} with log: true or step."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from imdbattn.errors import UserError
from imdbattn.settings.cli import explain, plain_dict, quote, refuse_unknown_keys
from imdbattn.settings.keys import as_text
from imdbattn.settings.safety import refuse_credentials
from imdbattn.settings.schema import Search, Settings, validate

Space = dict[str, BaseDistribution]


def distributions(space: Mapping[str, Any]) -> Space:
    """Raises UserError for an empty space, and for a setting without at least two values to choose from."""
    if not space:
        raise UserError("the space is empty: add +search=residual, or space.model.layers=[1,2,3]")
    found = {name: distribution(name, values) for name, values in space.items()}
    for name, one in found.items():
        if one.single():
            raise UserError(f"space: {name} has one value only: omit it there, and give {name}=... as a setting")
    return found


def distribution(name: str, values: Any) -> BaseDistribution:
    try:
        if isinstance(values, list):
            return CategoricalDistribution(list(dict.fromkeys(values)))
        whole = all(isinstance(values[end], int) for end in ("low", "high"))
        return (IntDistribution if whole else FloatDistribution)(**values)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        described = "must be a list of plain values, or a range such as {low: 1e-4, high: 1e-2, log: true}"
        raise UserError(f"space: {name}: {values} {described} ({type(error).__name__}: {error})") from error


def as_words(params: Mapping[str, Any]) -> list[str]:
    """Settings as on a command line; numbers with four digits."""

    def word(name: str, value: Any) -> str:
        if isinstance(value, float):
            return f"{name}={value:.4g}"
        plain = not isinstance(value, str) or re.fullmatch(r"[A-Za-z_][\w./-]*", value)
        return f"{name}={as_text(value)}" if plain else quote(f"{name}={value}", [name])

    return [word(name, value) for name, value in params.items()]


def ends(space: Space) -> Iterator[dict[str, Any]]:
    """A few points of the space that have both ends of each range, and all values of each list."""
    values = [
        list(one.choices) if isinstance(one, CategoricalDistribution) else [one.low, one.high]  # type: ignore[attr-defined]
        for one in space.values()
    ]
    for place in range(max(map(len, values))):
        yield dict(zip(space, (some[min(place, len(some) - 1)] for some in values), strict=True))


def compose(words: Sequence[str]) -> Settings:
    """The settings of `python -m imdbattn.train words...`. Raises UserError if they are wrong."""
    keys = (word.lstrip("+~").partition("=") for word in words)
    refuse_credentials({name: value for name, _, value in keys})
    refuse_unknown_keys("train", words)
    try:
        settings = hydra.compose("train", list(words))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        reason = explain(error, "train", words).replace(
            "add -m for a sweep over them", "give several in the space only"
        )
        name = re.match(r"there is no setting (\w+);", reason)
        for near in difflib.get_close_matches(name[1], Search.model_fields, 1, 0.8) if name else ():
            reason = f"there is no setting {name[1]}; the nearest is {near}"
        raise UserError(reason) from error
    return validate(plain_dict(settings))
