"""Common to all sources of texts: their type, loading from the hub, and the division into splits.

Shape suffix: N items of a split.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from imdbattn.errors import UserError, in_line

SPLITS = ("train", "validation", "test")
# Not eval, evaluation: some programs mean validation by it, others test
SPLIT_NAMES = dict.fromkeys(("validation", "valid", "val", "dev"), "validation") | {"train": "train", "test": "test"}
PART = re.compile(r"(.+)-(\d+)-of-(\d+)(-[0-9a-f]{16})?")  # of a split, as the hub names its files


@dataclass(frozen=True)
class Split:
    """One split as text."""

    texts: list[str]  # N reviews, or source sentences
    labels: Any  # (N,) class numbers; for pairs, a list of all correct targets of each source
    rows: np.ndarray  # (N,) int64 row numbers in the file or hub split

    def take(self, index: Sequence[int] | np.ndarray) -> "Split":
        labels = self.labels[index] if isinstance(self.labels, np.ndarray) else [self.labels[i] for i in index]
        return Split([self.texts[i] for i in index], labels, self.rows[index])

    def __len__(self) -> int:
        return len(self.texts)

    def labelled(self) -> Iterator[str]:
        """What a fingerprint of reviews covers: equal test sets have equal fingerprints."""
        return (f"{label}\0{text}\0" for text, label in zip(self.texts, self.labels.tolist(), strict=True))


@dataclass(frozen=True)
class Texts:
    """All splits of a source, by their names in SPLITS; a file without splits is the split ""."""

    splits: dict[str, Split]
    label_names: list[str] = field(default_factory=list)
    test_set: str = ""  # its name, for display
    dropped: int = 0  # number of items that were read but omitted
    facts: dict[str, Any] = field(default_factory=dict)  # for metrics.json


@dataclass(frozen=True)
class Source:
    """Where texts are from. `key` changes when the content does; `load` is called only if the cache lacks that key."""

    kind: str  # such as hub or path: what data.source=auto chose
    name: str  # for display
    key: str
    load: Callable[[], Texts] = field(compare=False)

    @property
    def checksum(self) -> str:
        """16 hex digits of `key`."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


class Rule(NamedTuple):
    """How missing splits are taken from the training file."""

    items: str  # plural, for messages
    test_set: str  # format string for a share: describes the test set
    settings: str  # that determine the size of a split, for messages
    assign: Callable[[Split, dict[str, float], set[str]], Mapping[str, Sequence[int] | np.ndarray]]
    # (items, shares of the missing splits, texts of the given splits) -> indices of train and of the missing splits


def split_named(name: str) -> tuple[str | None, tuple[int, int]]:
    """The split that a name stands for, in any case, and which part of how many: (1, 2) for train-00001-of-00002."""
    match = PART.fullmatch(name)
    name, part, parts = match.group(1, 2, 3) if match else (name, 0, 1)
    return SPLIT_NAMES.get(name.casefold()), (int(part), int(parts))


def load_hub(dataset: str, setting: str, remedy: str, **arguments: Any) -> Any:
    """`datasets.load_dataset`. Raises UserError naming the setting if the dataset is not available."""
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(dataset, **arguments)
    except Exception as error:  # the hub's client raises many kinds of exceptions
        raise UserError(f"{setting}: {dataset} is not available ({in_line(error)}); {remedy}") from error


def cut(texts: Texts, name: str, shares: Mapping[str, float] | None, rule: Rule) -> Texts:
    """Takes missing splits from training, then removes texts of validation and test from training.

    shares: of validation and test. None leaves the splits as they are, and a file without splits is a test set.
    Raises UserError if a split has no items.
    """
    splits, single = dict(texts.splits), "" in texts.splits
    dropped, test_set = texts.dropped, f"{name}: {'all' if single and shares is None else 'test'}"
    if shares is None:
        splits = {split or "test": items for split, items in splits.items()}
    else:
        rest = splits.pop("" if single else "train", None)
        if rest is None:
            raise UserError(f"{name} has no training {rule.items}; it holds {', '.join(splits)}")
        missing = {split: share for split, share in shares.items() if split not in splits}
        if "test" in missing:
            test_set = f"{name}: {rule.test_set.format(missing['test'])}"
        given = {text for split in splits.values() for text in split.texts}
        splits |= {split: rest.take(index) for split, index in rule.assign(rest, missing, given).items()}
        train = splits["train"]
        held_out = {text for split in ("validation", "test") for text in splits[split].texts}
        splits["train"] = train.take([n for n, text in enumerate(train.texts) if text not in held_out])
        if len(train) and not len(splits["train"]):
            raise UserError(f"{name}: no {rule.items} for train: each text is also in validation or test; give others")
        dropped += len(rest) - sum(len(splits[split]) for split in ("train", *missing))
    splits = {split: splits[split] for split in SPLITS if split in splits}
    for split, items in splits.items():
        if not len(items):
            raise UserError(f"{name}: no {rule.items} for {split}; give more, or change {rule.settings}")
    return replace(texts, splits=splits, test_set=texts.test_set or test_set, dropped=dropped)


def fingerprint(parts: Iterable[str]) -> str:
    """16 hex digits of the parts of a split, in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
