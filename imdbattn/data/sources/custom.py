"""A custom source: a callable that returns the items of each split.

data.source names it with `_target_`. It returns a mapping from the names of splits to iterables of
(text, label), or of (source, target) for an encoder-decoder. If it returns only train, the rest
is cut from it. It is called for every run, because only its texts show whether they have changed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from imdbattn.data.labels import counted, with_class_numbers
from imdbattn.data.split_names import by_split
from imdbattn.data.splits import Source, fingerprint
from imdbattn.errors import UserError, one_line, wrapping_errors
from imdbattn.settings.objects import TARGET, as_mapping, import_callable

Item = tuple[str, Any]  # a text and its label, or a source and its target
Items = dict[str, list[Item]]  # by the names in SPLITS; train alone is the split ""


def custom_reviews(settings: object, label_names: Sequence[str] | None) -> Source:
    """Returns the reviews that a callable returns. Raises UserError that names the callable."""
    items = custom_items(settings, (str, bool, int, float))
    name = source_name(settings)
    identity = repr((name, content_of(items), label_names))
    return Source("custom", name, identity, lambda: with_class_numbers(items, label_names, name))


def source_name(settings: object) -> str:
    """Returns the name of a source, such as mypkg.tweets(language=en)."""
    arguments = as_mapping(settings)
    name = str(arguments.pop(TARGET))
    if arguments:
        name += f"({', '.join(f'{key}={value}' for key, value in arguments.items())})"
    return name


def content_of(items: Items) -> str:
    """Returns the fingerprint of all splits."""
    return fingerprint(
        f"{split}\0{text}\0{other}\0" for split, pairs in items.items() for text, other in pairs
    )


def custom_items(settings: object, value_types: tuple[type, ...]) -> Items:
    """Returns the items of a source. value_types: the types of a label or a target. Raises
    UserError that names the callable.
    """
    where, read = import_callable(settings, "data.source")
    with wrapping_errors(where):
        items: Items = {}
        for split, pairs in by_split(read(), where, "return each once").items():
            name = f"{where}, {split}" if split else where
            items[split] = [item_of(pair, value_types, name, row) for row, pair in enumerate(pairs)]
    return items


def item_of(pair: object, value_types: tuple[type, ...], name: str, row: int) -> Item:
    """Returns a text and its label or target. Raises UserError for anything else."""
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        text, value = pair
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(text, str) and isinstance(value, value_types):
            return text, value
    is_pair = value_types == (str,)
    wanted = "a source and its target, two texts" if is_pair else "a text and its label"
    shown = one_line(repr(pair), 80)
    raise UserError(f"{name}: {counted(row)} is {shown} instead of {wanted}")
