"""Pairs of source and target as ids, split and padded to batches.

Shape suffixes: N items of a split, B sequences of a batch, S source positions, T target positions.
"""

import hashlib
import logging
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from imdbattn.data.corpus import Corpus, check_known_share
from imdbattn.data.plans import BatchPlan
from imdbattn.data.ragged import BatchOptions, Ragged, ragged_from_lists
from imdbattn.data.sources.pairs import find_pair_source
from imdbattn.data.splits import Split, Texts, fingerprint, splits_to_score, with_all_splits
from imdbattn.data.symbols import EOS, UNK_SYMBOL, Vocabulary

log = logging.getLogger(__name__)

SYMBOLS_REMEDY = (
    "there may be too few pairs (min_frequency drops rare words), or no spaces between words (set"
    " data.tokenizer=characters)"
)


class PairBatch(NamedTuple):
    """A padded batch. `items_B` are indices in the split, so that each pair is scored once."""

    source_BS: Tensor  # int64 ids, then PAD
    source_lengths_B: Tensor  # int64 symbols
    target_BT: Tensor  # int64 ids and EOS, then PAD; without BOS
    target_lengths_B: Tensor  # int64 symbols, including EOS
    items_B: Tensor  # int64
    lengths_B: Tensor  # int64 symbols, source and target
    global_count: int  # number of pairs in this batch, over all processes
    global_symbols: Tensor  # () int64 target symbols, including EOS, over all processes
    has_padding: bool  # whether a source is padded, over all processes

    @property
    def lengths_if_padded_B(self) -> Tensor | None:
        """The source lengths for the model; None if no source is padded, which avoids a
        synchronization with the device, or if this process has no sources, which cannot be packed.
        """
        return self.source_lengths_B if self.has_padding and len(self.items_B) else None


@dataclass(frozen=True)
class Pairs:
    """One split: ids of both sides, and the texts, including unknown words."""

    source: Ragged
    target: Ragged  # each ends with EOS
    texts: list[str]  # N sources, symbols joined by spaces
    references: list[list[str]]  # all correct targets of each source, symbols joined by spaces

    def __len__(self) -> int:
        return len(self.source)

    @property
    def rows(self) -> np.ndarray:
        """The row of each source in its file, or the number of the generated pair, (N,)."""
        return self.source.rows

    def to(self, device: torch.device) -> "Pairs":
        return replace(self, source=self.source.to(device), target=self.target.to(device))

    @property
    def is_cuda(self) -> bool:
        return self.source.is_cuda

    def side_lengths(self, options: BatchOptions) -> np.ndarray:
        """Returns the number of symbols of the longer side, with EOS, (N,). options: not used."""
        return torch.maximum(self.source.lengths, self.target.lengths).numpy()

    def batch_lengths(self, options: BatchOptions) -> np.ndarray:
        """Returns the number of symbols on both sides, with EOS, or of padded positions, (N,)."""
        if options.padded_lengths:
            return 2 * options.padded_sizes(self.side_lengths(options))
        return (self.source.lengths + self.target.lengths).numpy()

    def batches(self, plans: Sequence[BatchPlan], options: BatchOptions) -> list[PairBatch]:
        """Makes several batches with as many operations as one.

        plans: one for each batch; their seeds are not used. options: with `padded_lengths`, both
        sides are padded to one of them; by default, each side of a batch is padded to its longest
        item. Other options are not used.
        """
        has_few_lengths = bool(options.padded_lengths)
        sources, targets = self.source.batches(plans, options), self.target.batches(plans, options)
        batches = []
        for plan, source, target in zip(plans, sources, targets, strict=True):
            source_BS, target_BT = source.tokens_BT, target.tokens_BT
            if has_few_lengths:
                size = max(source_BS.shape[1], target_BT.shape[1])
                source_BS = F.pad(source_BS, (0, size - source_BS.shape[1]))
                target_BT = F.pad(target_BT, (0, size - target_BT.shape[1]))
            # The lengths are read on the CPU, without waiting for the device. An empty batch (too
            # few pairs) has no padding.
            shorter = self.source.lengths[plan.items_B] != source_BS.shape[1]
            batches.append(
                PairBatch(
                    source_BS=source_BS,
                    source_lengths_B=source.lengths_B,
                    target_BT=target_BT,
                    target_lengths_B=target.lengths_B,
                    items_B=source.items_B,
                    lengths_B=source.lengths_B + target.lengths_B,
                    global_count=len(plan.items_B),
                    global_symbols=target.lengths_B.sum(),
                    has_padding=has_few_lengths or bool(shorter.any()),
                )
            )
        return batches


@dataclass(frozen=True, kw_only=True)
class PairCorpus(Corpus):
    """Pairs, and the vocabularies that their ids index."""

    splits: dict[str, Pairs]
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary


def load_pairs(
    settings: Any,
    vocabularies: tuple[Vocabulary, Vocabulary] | None = None,
    keep_splits: bool = False,
) -> PairCorpus:
    """Returns the corpus that the `data` settings describe: read, split, encoded.

    vocabularies: a trained run's vocabularies of source and target; None builds them from training.
    keep_splits: see data.corpus.load_reviews.
    """
    source = find_pair_source(settings)
    generated = source.kind == "reverse"
    items, frequency = ("strings", 1) if generated else ("sentences", settings.min_frequency)
    shares = (
        {} if generated else {"test": settings.test_share, "validation": settings.validation_share}
    )
    texts = source.load()
    if keep_splits:
        texts = splits_to_score(texts, source.name)
    else:
        texts = cut_pairs(texts, source.name, shares)
    groups = {
        name: split if name == "train" else by_source(split) for name, split in texts.splits.items()
    }
    if vocabularies is None:
        sides = groups["train"].texts, chain(*groups["train"].labels)
        of_source, of_target = (Vocabulary.count(map(str.split, side), frequency) for side in sides)
    else:
        of_source, of_target = vocabularies
    splits = {name: encoded(split, of_source, of_target) for name, split in groups.items()}
    known_symbols = {}
    scored = [split for name, split in splits.items() if name != "train" or vocabularies]
    for side in ("source", "target"):
        ids = torch.cat([getattr(split, side).ids for split in scored])
        ids = ids[ids != EOS]
        share = known_symbols[side] = int((ids != UNK_SYMBOL).sum()) / max(len(ids), 1)
        if not generated:
            minimum = 0.0 if keep_splits else settings.min_known
            check_known_share(share, f"{side} symbols", source.name, SYMBOLS_REMEDY, minimum)
    return PairCorpus(
        splits=splits,
        items_name=items,
        source_kind=source.kind,
        source_key=source.key,
        test_set=texts.test_set,
        fingerprints={name: fingerprint(with_targets(split)) for name, split in groups.items()},
        facts={
            "source_symbols": len(of_source),
            "target_symbols": len(of_target),
            "known_symbols": known_symbols,
            "dropped": texts.dropped,
        },
        source_vocabulary=of_source,
        target_vocabulary=of_target,
    )


def cut_pairs(texts: Texts, name: str, shares: Mapping[str, float]) -> Texts:
    """Returns train, validation and test, see `with_all_splits`.

    A missing split is taken from training by a hash of each source, so that it does not depend on
    the other pairs. shares: of validation and test.
    """

    def indices(train: Split, missing: dict[str, float]) -> dict[str, list[int]]:
        index: dict[str, list[int]] = {split: [] for split in (*missing, "train")}
        ends = [*accumulate(missing.values())]
        for at, text in enumerate(train.texts):
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            index[[*index][bisect(ends, int.from_bytes(digest[:8]) / 2**64)]].append(at)
        return index

    test_set = f"{shares.get('test', 0):.0%} of its source sentences"
    return with_all_splits(texts, name, shares, indices, test_set)


def encoded(split: Split, of_source: Vocabulary, of_target: Vocabulary) -> Pairs:
    """Returns the pairs as ids: each source and its first target."""
    sources = ragged_from_lists([of_source.encode(text.split()) for text in split.texts])
    targets = ragged_from_lists(
        [[*of_target.encode(first.split()), EOS] for first, *_ in split.labels]
    )
    return Pairs(replace(sources, rows=split.rows), targets, split.texts, split.labels)


def by_source(split: Split) -> Split:
    """Returns one item per source, with all its targets and the row of its first pair."""
    targets: dict[str, list[str]] = {}
    rows: dict[str, int] = {}
    for source, (target,), row in zip(split.texts, split.labels, split.rows, strict=True):
        targets.setdefault(source, []).append(target)
        rows.setdefault(source, row)
    return Split(list(targets), list(targets.values()), np.array(list(rows.values()), np.int64))


def with_targets(split: Split) -> Iterator[str]:
    """Returns what a fingerprint covers: sources and all their targets."""
    return (
        "\0".join([source, *targets, "\n"])
        for source, targets in zip(split.texts, split.labels, strict=True)
    )
