"""A custom source: a callable that returns the items of each split.

data.source names it with `_target_`. It returns a mapping from the names of splits to iterables of
(text, label), or of (source, target) for an encoder-decoder; of train alone, the other splits are
cut. It is called for every run, because only its texts tell whether they have changed.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from imdbattn.data.labels import as_label, with_class_numbers
from imdbattn.data.split_names import split_named
from imdbattn.data.splits import SPLITS, Source, Texts, fingerprint
from imdbattn.errors import UserError, in_line, wrapping_errors
from imdbattn.settings.objects import TARGET, as_mapping, import_callable

Item = tuple[str, str]  # a text and its label, or a source and its target
Items = dict[str, list[Item]]  # by the names in SPLITS; train alone is the split ""
LABELS = (str, bool, int, float)  # types of labels


def custom_reviews(settings: object, label_names: Sequence[str] | None) -> Source:
    """Returns the reviews that a callable returns. Raises UserError of one line that names it."""
    where, items = custom_items(settings, LABELS)
    name = name_of(settings)

    def load() -> Texts:
        read, places = {}, {}
        for split, pairs in items.items():
            read[split] = [text for text, _ in pairs], [label for _, label in pairs]
            places[split] = f"{where}, {split}" if split else where
        return with_class_numbers(read, label_names, name, None, places)

    key_of_labels = label_names and [*label_names]
    return Source("custom", name, repr((name, content_of(items), key_of_labels)), load)


def content_of(items: Items) -> str:
    """Returns the fingerprint of all splits."""
    return fingerprint(
        f"{split}\0{text}\0{other}\0" for split, pairs in items.items() for text, other in pairs
    )


def name_of(settings: object) -> str:
    """Returns the name of a source, such as mypkg.tweets(language=en)."""
    arguments = as_mapping(settings)
    target = arguments.pop(TARGET)
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return f"{target}({given})" if given else str(target)


def custom_items(settings: object, others: tuple[type, ...] = (str,)) -> tuple[str, Items]:
    """Returns the name of a callable for messages, and its items, by default pairs of texts.

    others: see `item_of`. Raises UserError of one line that names the callable.
    """
    where, read = import_callable(settings, "data.source")
    with wrapping_errors(where):
        returned = read()
        if not isinstance(returned, Mapping):
            returned_type = type(returned).__name__
            raise UserError(
                f"{where} returns {returned_type} instead of a mapping of splits to pairs"
            )
        items: Items = {}
        for given, pairs in returned.items():
            split, _ = split_named(str(given))
            if split is None or split in items:
                known = ", ".join(SPLITS)
                raise UserError(
                    f"{where} returns the split {given!r}: each of {known} may be there once"
                )
            items[split] = [
                item_of(pair, others, f"{where}, {split}", n) for n, pair in enumerate(pairs)
            ]
    if not items:
        raise UserError(f"{where} returns no split: return at least train")
    return where, {"": items["train"]} if list(items) == ["train"] else items


def item_of(pair: object, others: tuple[type, ...], where: str, row: int) -> Item:
    """Returns a text, and the label or target that belongs to it, as text.

    others: The types that a label or target may have. Raises UserError for anything else.
    """
    if isinstance(pair, (tuple, list)) and len(pair) == 2:
        text, other = pair
        if isinstance(other, np.generic):
            other = other.item()
        is_nan = other != other
        if isinstance(text, str) and isinstance(other, others) and not is_nan:
            return text, as_label(other)
    wanted = "a text and its label" if others == LABELS else "a source and its target, two texts"
    shown = in_line(repr(pair), 80)
    raise UserError(f"{where}: row {row} (counted from 0) is {shown} instead of {wanted}")
