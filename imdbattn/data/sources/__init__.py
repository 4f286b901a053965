"""The types of texts that all sources share, and the division into splits.

Shape suffix: N items of a split.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from imdbattn.errors import UserError

SPLITS = ("train", "validation", "test")
# Not eval, evaluation: some programs mean validation by it, others test
SPLIT_NAMES = dict.fromkeys(("validation", "valid", "val", "dev"), "validation") | {
    "train": "train",
    "test": "test",
}
PART = re.compile(r"(.+)-(\d+)-of-(\d+)(-[0-9a-f]{16})?")  # of a split, as the hub names its files


@dataclass(frozen=True)
class Split:
    """One split as text."""

    texts: list[str]  # N reviews, or source sentences
    labels: Any  # (N,) class numbers; for pairs, a list of all correct targets of each source
    rows: np.ndarray  # (N,) int64 row numbers in the file or hub split

    def take(self, index: Sequence[int] | np.ndarray) -> "Split":
        labels = (
            self.labels[index]
            if isinstance(self.labels, np.ndarray)
            else [self.labels[i] for i in index]
        )
        return Split([self.texts[i] for i in index], labels, self.rows[index])

    def __len__(self) -> int:
        return len(self.texts)

    def labelled(self) -> Iterator[str]:
        """What a fingerprint of reviews covers: equal test sets have equal fingerprints."""
        return (
            f"{label}\0{text}\0"
            for text, label in zip(self.texts, self.labels.tolist(), strict=True)
        )


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
    """Where texts are from. `key` changes when the content does; `load` is called only if the cache
    lacks that key.
    """

    kind: str  # such as hub or path: what data.source=auto chose
    name: str  # for display
    key: str
    load: Callable[[], Texts] = field(compare=False)

    @property
    def checksum(self) -> str:
        """16 hex digits of `key`."""
        return fingerprint([self.key])


def split_named(name: str) -> tuple[str | None, tuple[int, int]]:
    """The split that a name stands for, in any case, and which part of how many: (1, 2) for
    train-00001-of-00002.
    """
    match = PART.fullmatch(name)
    name, part, parts = match.group(1, 2, 3) if match else (name, 0, 1)
    return SPLIT_NAMES.get(name.casefold()), (int(part), int(parts))


def load_hub(dataset: str, **arguments: Any) -> Any:
    """`datasets.load_dataset` without progress bars."""
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset(dataset, **arguments)


def divided(
    texts: Texts,
    name: str,
    shares: Mapping[str, float] | None,
    places: Callable[[Split, dict[str, float]], Mapping[str, Any]],
    cut: str,
) -> Texts:
    """Train, validation and test. Missing splits are taken from training, which then loses the
    texts of the others.

    Args:
        texts: the splits of a source.
        name: that of the source, for messages.
        shares: of validation and test. None leaves the splits as they are, for scoring; a single
        file is a test set.
        places: given the training split and the shares of missing ones, the places of the items of
        train and of these.
        cut: describes a test set that is taken from training.

    Raises UserError if there is no training split.
    """
    whole = "test" if shares is None else "train"
    splits = {split or whole: part for split, part in texts.splits.items()}
    test_set, dropped = "all" if "" in texts.splits else "test", texts.dropped
    if shares is not None:
        if "train" not in splits:
            raise UserError(
                f"{name} has no training data: give train/<label>/*.txt, or a table named train"
            )
        rest = splits["train"]
        index = places(
            rest, {split: share for split, share in shares.items() if split not in splits}
        )
        splits |= {split: rest.take(own) for split, own in index.items()}
        held_out = {text for split in ("validation", "test") for text in splits[split].texts}
        train = splits["train"]
        splits["train"] = train.take(
            [place for place, text in enumerate(train.texts) if text not in held_out]
        )
        test_set = cut if "test" in index else "test"
        dropped += len(rest) - sum(len(splits[split]) for split in index)
    splits = {split: splits[split] for split in SPLITS if split in splits}
    return replace(
        texts, splits=splits, test_set=texts.test_set or f"{name}: {test_set}", dropped=dropped
    )


def check_splits(texts: Texts, name: str) -> None:
    """Raises UserError if a split has no items, or if training has only one class."""
    empty = [split for split in SPLITS if not len(texts.splits.get(split, ()))]
    if empty:
        problem = f"nothing is left for {empty[0]} (texts of other splits are omitted)"
        remedy = (
            "give more, or change data.validation_share, test_share, limit, folds or max_tokens"
        )
        raise UserError(f"{name}: {problem}: {remedy}")
    if (
        isinstance(labels := texts.splits["train"].labels, np.ndarray)
        and len(np.unique(labels)) < 2
    ):
        raise UserError(
            f"{name}: training has only one class: add reviews of another, or increase data.limit"
        )


def fingerprint(parts: Iterable[str]) -> str:
    """16 hex digits of the parts of a split, in order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
