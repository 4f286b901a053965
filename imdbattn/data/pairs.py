"""Pairs of source and target: from text to ids to padded batches.

Shape suffixes: N items of a split, B sequences of a batch, S source positions, T target positions.
"""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from imdbattn.data import translation
from imdbattn.data.pair_sources import PairSource, TextPairs
from imdbattn.data.ragged import Ragged, ragged
from imdbattn.data.reverse import reverse_source
from imdbattn.data.vocabulary import EOS, MARKERS, UNK, Vocabulary
from imdbattn.errors import UserError

log = logging.getLogger(__name__)

SOURCES = ("auto", "path", "hub", "packaged", "reverse")


class PairBatch(NamedTuple):
    """A padded batch. `rows_B` are the pairs' places in their split, so that each is scored exactly once."""

    source_BS: Tensor  # int64 ids, PAD behind the end
    source_lengths_B: Tensor  # int64 symbols
    target_BT: Tensor  # int64 ids, closed by EOS, PAD behind it; without BOS
    target_lengths_B: Tensor  # int64 symbols, EOS counted
    rows_B: Tensor  # int64
    lengths_B: Tensor  # int64 symbols, source and target
    reviews: int  # pairs in this batch, over all processes
    symbols: int  # target symbols in this batch, EOS counted, over all processes
    padded: bool  # whether a source is padded

    @property
    def lengths_or_none_B(self) -> Tensor | None:
        """Source lengths as a model takes them: None where nothing is padded, known without asking the device."""
        return self.source_lengths_B if self.padded else None


@dataclass(frozen=True)
class Pairs:
    """One split: ids of both sides, and its texts as the data has them, unknown words included."""

    source: Ragged
    target: Ragged  # closed by EOS
    texts: list[str]  # N sources, symbols joined by spaces
    references: list[list[str]]  # N times all right targets, symbols joined by spaces

    def __len__(self) -> int:
        return len(self.source)

    @property
    def rows(self) -> np.ndarray:
        """(N,) row in the source file, or number of the generated pair."""
        return self.source.rows

    def to(self, device: torch.device) -> "Pairs":
        """The same pairs on another device."""
        return replace(self, source=self.source.to(device), target=self.target.to(device))

    def batch(self, index_B: Tensor, part: slice = slice(None)) -> PairBatch:
        """The pairs `index_B` (on the CPU), each side padded to its longest; of them a part, as one process gets it."""
        symbols, pairs = int(self.target.lengths[index_B].sum()), len(index_B)
        source, target = self.source.batch(index_B), self.target.batch(index_B)
        sides = (source.tokens_BT, source.lengths_B, target.tokens_BT, target.lengths_B, source.rows_B)
        columns = (*sides, source.lengths_B + target.lengths_B)
        # Found on the CPU: nothing waits for the device. An empty part, of fewer pairs than processes, has no padding.
        padded = bool((self.source.lengths[index_B][part] != source.tokens_BT.shape[1]).any())
        return PairBatch._make([*(column[part] for column in columns), pairs, symbols, padded])


class PairBatches(Dataset[PairBatch]):
    """Turns what a sampler of imdbattn.data.sampling yields into padded batches.

    rank, ranks: this process keeps every `ranks`-th pair of each batch, from `rank` on.
    """

    def __init__(self, pairs: Pairs, rank: int = 0, ranks: int = 1):
        self.pairs, self.rank, self.ranks = pairs, rank, ranks

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, item: tuple[int, np.ndarray]) -> PairBatch:
        _, index = item  # nothing is drawn at random here, so the seed is of no use
        return self.pairs.batch(torch.from_numpy(index), slice(self.rank, None, self.ranks))

    def lengths_N(self) -> np.ndarray:
        """Symbols of each pair, source and target, EOS counted."""
        return (self.pairs.source.lengths + self.pairs.target.lengths).numpy()


@dataclass(frozen=True)
class PairCorpus:
    """All splits of ids, the vocabularies that the ids point into, and which test set this is."""

    splits: dict[str, Pairs]
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary
    source: str  # reverse, path, hub or packaged: what `auto` decided
    test_set: str  # a name for a person
    fingerprints: dict[str, str]  # 16 hex digits of each split's texts
    source_key: str  # 16 hex digits of what the source was made of
    items: str  # what the sources are: strings or sentences
    unknown: dict[str, int]  # symbols of each split, source and target, that became UNK
    dropped: int  # pairs that were read and left out

    def facts(self) -> dict[str, Any]:
        """What metrics.json says of the data."""
        sizes = {"source_symbols": len(self.source_vocabulary), "target_symbols": len(self.target_vocabulary)}
        return {"items": self.items, **sizes, "unknown_symbols": self.unknown, "dropped": self.dropped}


def find_source(cfg: Mapping[str, Any]) -> PairSource:
    """The source that the `data` settings name; `auto` decides here.

    Raises UserError for an unknown source, settings that contradict each other, or a path or dataset that is not there.
    """
    source = cfg.get("source")
    if source not in SOURCES:
        raise UserError(f"data.source={source} is unknown; choose one of {', '.join(SOURCES)}")
    return reverse_source(cfg) if source == "reverse" else translation.find_source(cfg)


def split_text(text: str, cfg: Mapping[str, Any]) -> list[str]:
    """A typed text as symbols, none where it is blank: letters (spaces left out, raised), or words as in the data."""
    if cfg["source"] == "reverse":
        return list("".join(text.split()).upper())
    return translation.normalised(text, cfg["lower"]).split()


def prepare(
    cfg: Mapping[str, Any], vocabularies: tuple[Vocabulary, Vocabulary] | None = None, uncut: bool = False
) -> PairCorpus:
    """The corpus that the `data` settings describe.

    vocabularies: of source and target, of a trained run; None counts them, on the training pairs alone.
    uncut: one file is a test split as a whole (for scoring; needs `vocabularies`).
    Raises UserError for anything that cannot be read.
    """
    source = find_source(cfg)
    texts = source.load(uncut)
    of_source, of_target = vocabularies or count(texts.splits["train"], cfg.get("min_frequency", 1))
    splits, unknown = {}, {}
    for name, split in texts.splits.items():
        pairs = splits[name] = encode(split, of_source, of_target)
        unknown[name] = sum(int((side.ids == UNK).sum()) for side in (pairs.source, pairs.target))
        if unknown[name] and name != "train":
            symbols = sum(map(len, (pairs.source.ids, pairs.target.ids))) - len(pairs)
            log.warning(
                "%s: %d of %d symbols of %s are not known from training: the model sees %s",
                *(source.name, unknown[name], symbols, name, MARKERS[UNK]),
            )
    return PairCorpus(
        splits,
        of_source,
        of_target,
        source.kind,
        texts.test_set,
        {name: fingerprint(split) for name, split in texts.splits.items()},
        source.checksum,
        "strings" if source.kind == "reverse" else "sentences",
        unknown,
        texts.dropped,
    )


def count(train: TextPairs, min_frequency: int) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target. Raises UserError where a side has no symbol that is frequent enough."""
    sides = (train.sources, [target for targets in train.targets for target in targets])
    found = [Vocabulary.count(map(str.split, side), min_frequency) for side in sides]
    if min(map(len, found)) == len(MARKERS):
        raise UserError(f"no word of training occurs data.min_frequency={min_frequency} times: set it lower")
    return found[0], found[1]


def encode(split: TextPairs, of_source: Vocabulary, of_target: Vocabulary) -> Pairs:
    """A split as ids; its first target is the one that is learned and scored."""
    source = ragged([of_source.encode(text.split()) for text in split.sources])
    target = ragged([[*of_target.encode(targets[0].split()), EOS] for targets in split.targets])
    source, target = (replace(side, rows=split.rows) for side in (source, target))
    return Pairs(source, target, split.sources, split.targets)


def fingerprint(split: TextPairs) -> str:
    """16 hex digits of a split's sources and all their targets, in order."""
    digest = hashlib.sha256()
    for source, targets in zip(split.sources, split.targets, strict=True):
        digest.update("\0".join([source, *targets, "\n"]).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
