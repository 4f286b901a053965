"""The texts of a source, and their division into training, validation and test.

Shape suffix: N items of a split.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from imdbattn.errors import UserError

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """One split as text."""

    texts: list[str]  # N reviews, or source sentences
    labels: Any  # (N,) class numbers; for pairs, a list of all correct targets of each source
    rows: np.ndarray  # (N,) int64 row numbers in the source's table of this split

    def select(self, index: Sequence[int] | np.ndarray) -> "Split":
        texts = [self.texts[i] for i in index]
        if isinstance(self.labels, np.ndarray):
            return Split(texts, self.labels[index], self.rows[index])
        return Split(texts, [self.labels[i] for i in index], self.rows[index])

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint_lines(self) -> Iterator[str]:
        """Returns what a fingerprint of reviews covers: equal test sets have equal fingerprints."""
        return (
            f"{label}\0{text}\0"
            for text, label in zip(self.texts, self.labels.tolist(), strict=True)
        )


@dataclass(frozen=True)
class Texts:
    """All items of a source, by the names in SPLITS; the key "" has items not split yet."""

    splits: dict[str, Split]
    label_names: list[str] = field(default_factory=list)
    test_set: str = ""  # name of the test set, for display
    dropped: int = 0  # number of items that were read but omitted
    facts: dict[str, object] = field(default_factory=dict)  # written into metrics.json


@dataclass(frozen=True)
class Source:
    """A source of texts. `load` is called only if the cache has no entry for it."""

    kind: str  # hub, path and others; what data.source=auto chose
    name: str  # shown to users
    identity: str  # changes with the content, and with the code of a custom tokenizer
    load: Callable[[], Texts] = field(compare=False)
    tokenizer_version: str = ""  # the checksum of a custom tokenizer's code

    @property
    def key(self) -> str:
        """The 16 hex digits with which the `source_key` of a run folder begins."""
        return fingerprint([self.identity])


def splits_to_score(texts: Texts, name: str, limit: int | None = None) -> Texts:
    """Returns the splits of a source as they are; a single file is the test set.

    name: the source, for display. limit: see `stratified_subset`.
    """
    splits = {split or "test": items for split, items in texts.splits.items()}
    splits = {split: splits[split] for split in SPLITS if split in splits}
    test_set = texts.test_set or f"{name}: {'all' if '' in texts.splits else 'test'}"
    return stratified_subset(replace(texts, splits=splits, test_set=test_set), limit)


def with_all_splits(
    texts: Texts,
    name: str,
    shares: Mapping[str, float],
    indices: Callable[[Split, dict[str, float]], Mapping[str, Sequence[int] | np.ndarray]],
    cut: str,
    limit: int | None = None,
) -> Texts:
    """Returns train, validation and test. Training loses the texts of the other splits; missing
    splits are taken from what remains.

    Args:
        texts: the splits of a source.
        name: the source, for messages.
        shares: shares of validation and test.
        indices: takes the training split and the shares of missing splits; returns the indices of
            the items of train and of the missing splits.
        cut: describes a test set that is taken from training.
        limit: see `stratified_subset`.

    Raises UserError if a split has no items, or training has one class.
    """
    own = {split or "train": items for split, items in texts.splits.items()}
    if "train" not in own:
        raise UserError(
            f"{name} has no training data: add train/<label>/*.txt, or a table named train"
        )
    missing = {split: share for split, share in shares.items() if split not in own}
    rest = without_texts_of(own["train"], [own[split] for split in shares if split in own])
    index = indices(rest, missing) if len(rest) else dict.fromkeys(("train", *missing), ())
    splits = own | {split: rest.select(items) for split, items in index.items()}
    splits["train"] = without_texts_of(splits["train"], [splits[split] for split in missing])
    dropped = len(own["train"]) - sum(len(splits[split]) for split in index)
    whole = replace(
        texts,
        splits={split: splits[split] for split in SPLITS},
        test_set=texts.test_set or f"{name}: {cut if 'test' in missing else 'test'}",
        dropped=texts.dropped + dropped,
    )
    kept = stratified_subset(whole, limit)
    check_splits(kept, name)
    return kept


def without_texts_of(split: Split, others: Sequence[Split]) -> Split:
    """Returns a split without the items whose text, apart from spaces, is in one of `others`."""
    texts = {with_single_spaces(text) for other in others for text in other.texts}
    return split.select(
        [at for at, text in enumerate(split.texts) if with_single_spaces(text) not in texts]
    )


def with_single_spaces(text: str) -> str:
    """Returns the text with single spaces, for comparisons."""
    return " ".join(text.split())


def check_splits(texts: Texts, name: str) -> None:
    """Raises UserError if a split has no items, or if training has only one class."""
    for split in SPLITS:
        if not len(texts.splits.get(split, ())):
            raise UserError(
                f"{name}: nothing is left for {split} (texts of other splits are omitted): add"
                " more, or change data.validation_share, test_share, limit, folds or max_tokens"
            )
    labels = texts.splits["train"].labels
    if isinstance(labels, np.ndarray) and len(np.unique(labels)) < 2:
        raise UserError(
            f"{name}: training has only one class: add reviews of another, or increase data.limit"
        )


def fingerprint(contents: Iterable[str]) -> str:
    """Returns 16 hex digits of the contents of a split, in order."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]


# --- how reviews are divided ----------------------------------------------------------------------


def cut_reviews(
    reviews: Texts, name: str, shares: Mapping[str, float], limit: int | None = None
) -> Texts:
    """Returns train, validation and test, divided by `block_cut`, see `with_all_splits`."""
    test_set = f"a cut of {shares['test']:.0%} in consecutive blocks per class"
    return with_all_splits(reviews, name, shares, block_cut, test_set, limit)


def stratified_subset(reviews: Texts, limit: int | None) -> Texts:
    """Returns a random subset of `limit` reviews, stratified by split and class; None keeps all.

    Each review stays in its split, and a larger limit keeps all reviews of a smaller limit.
    """
    if limit is None:
        return reviews
    places: list[tuple[str, int]] = []  # the split of each review, and its index there
    quantiles = []
    for name, split in reviews.splits.items():
        for label in np.unique(split.labels):
            rng = np.random.default_rng((SPLITS.index(name), label))
            order = rng.permutation(np.flatnonzero(split.labels == label))
            places += [(name, index) for index in order.tolist()]
            quantiles.append((np.arange(len(order)) + 0.5) / len(order))
    chosen = np.argsort(np.concatenate(quantiles), kind="stable")[:limit]
    kept = sorted(places[number] for number in chosen)
    splits = {}
    for name, split in reviews.splits.items():
        splits[name] = split.select([index for of_split, index in kept if of_split == name])
    # Reviews were omitted from the whole source, not from this part of it.
    test_set = f"{reviews.test_set}, data.limit={limit}"
    return replace(reviews, splits=splits, test_set=test_set, dropped=0)


def block_cut(reviews: Split, shares: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Returns consecutive blocks of every class: indices of train, then of each name in `shares`.

    Consecutive reviews of IMDB are about the same film: with a random split, 97% of held-out
    reviews are about a film that is also in training, with consecutive blocks 37%.
    """
    ends = np.cumsum([1 - sum(shares.values()), *shares.values()])[:-1]

    def cut(index: np.ndarray) -> list[np.ndarray]:
        return np.split(index, np.round(ends * len(index)).astype(int))

    return cut_classes(reviews.labels, ("train", *shares), cut)


def cut_classes(
    labels_N: np.ndarray, splits: Sequence[str], cut: Callable[[np.ndarray], list[np.ndarray]]
) -> dict[str, np.ndarray]:
    """Returns the indices of each split, ascending. cut: divides the indices of a class."""
    classes = [cut(np.flatnonzero(labels_N == label)) for label in np.unique(labels_N)]
    parts = map(np.concatenate, zip(*classes, strict=True))
    return {split: np.sort(part) for split, part in zip(splits, parts, strict=True)}
