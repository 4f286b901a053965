"""Reads pairs of source and target, splits them, converts them to ids, and pads them to batches.

Shape suffixes: N items of a split, B sequences of a batch, S source positions, T target positions.
"""

import hashlib
import logging
import re
import unicodedata
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from imdbattn.data.corpus import Corpus, check_known, share_of
from imdbattn.data.ragged import Ragged, ragged
from imdbattn.data.sources.reverse import reverse_source
from imdbattn.data.split_names import split_named
from imdbattn.data.splits import Source, Split, Texts, check_splits, divided, fingerprint
from imdbattn.data.user_files.pair_files import Pair, aligned_files, read_aligned, read_pairs
from imdbattn.data.vocabulary import EOS, UNK, Vocabulary
from imdbattn.errors import UserError
from imdbattn.io.files import expanded, sha256_of
from imdbattn.io.network import load_hub

if TYPE_CHECKING:
    from imdbattn.settings.pairs import SideTokenizer, TranslationData

log = logging.getLogger(__name__)

SYMBOLS_REMEDY = (
    "there may be too few pairs (min_frequency drops rare words), or no spaces between words (set"
    " data.tokenizer=characters)"
)
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # a space within a symbol, as SentencePiece writes it
PACKAGED = Path(__file__).with_name("pairs_en-fr.tsv")  # named by its columns
# each is a separate symbol; apostrophes and hyphens belong to words
SIGNS = re.compile('([.,!?;:…"«»“”„‹›])')


class PairBatch(NamedTuple):
    """A padded batch. `items_B` are the indices of the pairs in their split, so that each is scored
    exactly once.
    """

    source_BS: Tensor  # int64 ids, then PAD
    source_lengths_B: Tensor  # int64 symbols
    target_BT: Tensor  # int64 ids and EOS, then PAD; without BOS
    target_lengths_B: Tensor  # int64 symbols, including EOS
    items_B: Tensor  # int64
    lengths_B: Tensor  # int64 symbols, source and target
    reviews: int  # pairs in this batch, over all processes
    symbols: int  # target symbols in this batch, including EOS, over all processes
    padded: bool  # whether a source is padded

    @property
    def lengths_or_none_B(self) -> Tensor | None:
        """Returns the source lengths for the model; None if no source is padded, which avoids a
        synchronization with the device.
        """
        return self.source_lengths_B if self.padded else None


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
        """Returns (N,) row in the source file, or number of the generated pair."""
        return self.source.rows

    def to(self, device: torch.device) -> "Pairs":
        return replace(self, source=self.source.to(device), target=self.target.to(device))

    def batch_lengths(self) -> np.ndarray:
        """Returns (N,) symbols of source and target, including EOS."""
        return (self.source.lengths + self.target.lengths).numpy()

    def batch(self, index_B: Tensor, seed: int = 0, own: slice = slice(None)) -> PairBatch:
        """Returns the pairs `index_B` (on the CPU), each side padded to its longest; returns
        the `own` of this process.

        seed: not used.
        """
        symbols, pairs = int(self.target.lengths[index_B].sum()), len(index_B)
        source, target = self.source.batch(index_B), self.target.batch(index_B)
        sides = (
            source.tokens_BT,
            source.lengths_B,
            target.tokens_BT,
            target.lengths_B,
            source.items_B,
        )
        columns = (*sides, source.lengths_B + target.lengths_B)
        # Computed on the CPU, without waiting for the device. An empty batch (too few pairs) is not
        # padded.
        padded = bool((self.source.lengths[index_B][own] != source.tokens_BT.shape[1]).any())
        return PairBatch._make([*(column[own] for column in columns), pairs, symbols, padded])


@dataclass(frozen=True, kw_only=True)
class PairCorpus(Corpus):
    """Pairs, and the vocabularies that their ids index."""

    splits: dict[str, Pairs]
    source_vocabulary: Vocabulary
    target_vocabulary: Vocabulary


def prepare_pairs(
    cfg: Any, vocabularies: tuple[Vocabulary, Vocabulary] | None = None, keep_splits: bool = False
) -> PairCorpus:
    """Returns the corpus that the `data` settings describe: read, split, encoded.

    vocabularies: of source and target, from a trained run; None builds them from the training
    pairs.
    keep_splits: for scoring, with `vocabularies`; takes the splits as they are, a single file as a
    test set.
    """
    source = find_pair_source(cfg)
    generated = source.kind == "reverse"
    items, least = ("strings", 1) if generated else ("sentences", cfg.min_frequency)
    shares = {} if generated else {"test": cfg.test_share, "validation": cfg.validation_share}
    texts = cut_pairs(source.load(), source.name, None if keep_splits else shares)
    groups = {
        name: split if name == "train" else by_source(split) for name, split in texts.splits.items()
    }
    if vocabularies is None:
        sides = groups["train"].texts, chain(*groups["train"].labels)
        of_source, of_target = (Vocabulary.count(map(str.split, side), least) for side in sides)
    else:
        of_source, of_target = vocabularies
    splits, unknown = {}, {}
    known: dict[str, list[int]] = {"source": [], "target": []}  # 1 for each symbol that is known
    for name, split in groups.items():
        sources = [of_source.encode(text.split()) for text in split.texts]
        targets = [[*of_target.encode(first.split()), EOS] for first, *_ in split.labels]
        unknown[name] = sum(side.count(UNK) for side in chain(sources, targets))
        if unknown[name] and name != "train":
            log.warning(
                "%s: %d symbols of %s are not in the training data: <unk>",
                source.name,
                unknown[name],
                name,
            )
        for side, sequences in (("source", sources), ("target", targets)):
            if name != "train" or vocabularies is not None:
                known[side] += [symbol != UNK for symbol in chain(*sequences) if symbol != EOS]
        splits[name] = Pairs(
            replace(ragged(sources), rows=split.rows), ragged(targets), split.texts, split.labels
        )
    known_symbols = {side: share_of(sum(found), len(found)) for side, found in known.items()}
    if not generated:
        least_known = 0.0 if keep_splits else cfg.min_known
        for side, share in known_symbols.items():
            check_known(share, f"{side} symbols", SYMBOLS_REMEDY, source.name, least_known)
    sizes = {"source_symbols": len(of_source), "target_symbols": len(of_target)}
    return PairCorpus(
        splits=splits,
        items=items,
        source=source.kind,
        source_key=source.checksum,
        test_set=texts.test_set,
        fingerprints={name: fingerprint(with_targets(split)) for name, split in groups.items()},
        facts={
            "items": items,
            **sizes,
            "unknown_symbols": unknown,
            "known_symbols": known_symbols,
            "dropped": texts.dropped,
        },
        source_vocabulary=of_source,
        target_vocabulary=of_target,
    )


def cut_pairs(texts: Texts, name: str, shares: Mapping[str, float] | None) -> Texts:
    """Returns train, validation and test, see `divided`.

    A missing split is taken from training by a hash of each source, so that it does not depend on
    the other pairs.
    """
    given = {
        text
        for split, pairs in texts.splits.items()
        if split not in ("", "train")
        for text in pairs.texts
    }

    def indices(train: Split, missing: dict[str, float]) -> dict[str, list[int]]:
        index: dict[str, list[int]] = {split: [] for split in (*missing, "train")}
        ends = [*accumulate(missing.values())]
        for at, text in enumerate(train.texts):
            if text not in given:
                digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
                index[[*index][bisect(ends, int.from_bytes(digest[:8]) / 2**64)]].append(at)
        return index

    cut = divided(
        texts, name, shares, indices, f"{(shares or {}).get('test', 0):.0%} of its source sentences"
    )
    if shares is not None:
        check_splits(cut, name)
    return cut


def by_source(split: Split) -> Split:
    """Returns one item per source, with all its targets and the row of its first pair."""
    targets: dict[str, list[str]] = {}
    for source, (target,) in zip(split.texts, split.labels, strict=True):
        targets.setdefault(source, []).append(target)
    rows = dict(zip(reversed(split.texts), reversed(split.rows), strict=True))
    return Split(
        list(targets),
        list(targets.values()),
        np.array([rows[source] for source in targets], np.int64),
    )


def with_targets(split: Split) -> Iterator[str]:
    """Returns what a fingerprint covers: sources and all their targets."""
    return (
        "\0".join([source, *targets, "\n"])
        for source, targets in zip(split.texts, split.labels, strict=True)
    )


# --- text -----------------------------------------------------------------------------------------


def split_text(text: str, cfg: Any) -> list[str]:
    """Returns a text as symbols: capital letters without spaces, or words as in the data; [] if it
    is blank.
    """
    if cfg.source == "reverse":
        return list("".join(text.split()).upper())
    return symbols_of(text, cfg.lower, tokenizers_of(cfg)[0]).split()


def tokenizers_of(cfg: "TranslationData") -> tuple["SideTokenizer", "SideTokenizer"]:
    """Returns data.tokenizer of source and of target."""
    setting = cfg.tokenizer
    if not isinstance(setting, (list, tuple)):
        return setting, setting
    source, target = setting
    return source, target


def symbols_of(text: str, lower: bool, tokenizer: "SideTokenizer") -> str:
    """Returns the symbols of a text, joined by single spaces: words and punctuation, characters, or
    the words of a callable. A space within them is SPACE.
    """
    if tokenizer == "words":
        return normalised(text, lower)
    text = unicodedata.normalize("NFC", text.lower() if lower else text)
    if tokenizer == "characters":
        return " ".join(SPACE.join(text.split()))
    from imdbattn.data.own_tokenizer import splitter_of

    return " ".join(SPACE.join(word.split()) for word in splitter_of(tokenizer)(text))


def joined_symbols(symbols: Iterable[str], cfg: Any, side: int) -> str:
    """Returns the text of symbols, for people. side: 0 of a source, 1 of a target."""
    if cfg.source == "reverse":
        return "".join(symbols)
    if tokenizers_of(cfg)[side] == "characters":
        return "".join(symbols).replace(SPACE, " ")
    return " ".join(symbols).replace(SPACE, " ")


def normalised(text: str, lower: bool) -> str:
    """Returns words and punctuation, joined by single spaces: "C’est à toi !" is "c'est à toi !".

    Combining accents are joined to their letter, and ’ becomes ', so that a word has only one form.
    """
    text = unicodedata.normalize("NFC", text.lower() if lower else text)
    # split() also splits at no-break spaces
    return " ".join(SIGNS.sub(r" \1 ", text.replace("’", "'")).split())


# --- sources --------------------------------------------------------------------------------------


def find_pair_source(cfg: Any) -> Source:
    """Returns the source that the `data` settings name."""
    if not isinstance(cfg.source, str):
        return own_source(cfg)
    if cfg.source == "reverse":
        return reverse_source(cfg)
    if cfg.hub:
        return hub_pairs(cfg)
    name = f"Packaged pairs {'-'.join(cfg.languages)}, of few words and patterns"
    columns = sorted(cfg.languages)
    path, swapped = PACKAGED.with_name(f"pairs_{'-'.join(columns)}.tsv"), cfg.languages != columns
    if cfg.path:
        path = expanded(cfg.path)
        name, swapped = str(path.resolve()), False
        if path.is_dir():
            return aligned_source(path, name, cfg)
    key = repr((sha256_of(path), swapped, cfg.encoding_errors, cfg.limit))
    chosen = "path" if cfg.path else "packaged"
    return Source(
        chosen,
        name,
        key,
        lambda: clean({"": read_pairs(path, cfg.encoding_errors, swapped)}, name, cfg),
    )


def own_source(cfg: "TranslationData") -> Source:
    """Returns the pairs of a callable of one's own."""
    from imdbattn.data.sources.own import content_of, name_of, own_pairs

    name, items = name_of(cfg.source), own_pairs(cfg.source)

    def load() -> Texts:
        tables = {}
        for split, pairs in items.items():
            tables[split] = [(row, *sides) for row, sides in enumerate(pairs)]
        return clean(tables, name, cfg)

    return Source("own", name, repr((name, content_of(items), cfg.limit)), load)


def aligned_source(folder: Path, name: str, cfg: "TranslationData") -> Source:
    """Returns two aligned files for each split in a folder, such as train.en and train.fr."""
    files = aligned_files(folder, list(cfg.languages))
    sums = {}
    for split, sides in files.items():
        sums[split] = [(file.name, sha256_of(file)) for file in sides]

    def load() -> Texts:
        pairs = {split: read_aligned(sides, cfg.encoding_errors) for split, sides in files.items()}
        return clean(pairs, name, cfg)

    return Source("path", name, repr((sums, cfg.encoding_errors, cfg.limit)), load)


def hub_pairs(cfg: "TranslationData") -> Source:
    """Returns a dataset of the Hugging Face hub with a column `translation`."""
    hub = str(cfg.hub)
    dataset = load_hub(hub, name=cfg.hub_config)
    tables = {split: dataset[name] for name in dataset if (split := split_named(name)[0])}
    if others := [name for name in dataset if not split_named(name)[0]]:
        log.warning("%s: not used: %s", hub, ", ".join(others))

    def read(table: Any) -> Iterator[Pair]:
        rows = range(min(len(table), cfg.limit or len(table)))
        # {"en": "...", "fr": "..."}
        for row, sides in enumerate(table.select(rows)["translation"][:]):
            source, target = (str(sides[language] or "") for language in cfg.languages)
            yield row, source, target

    def load() -> Texts:
        whole = list(tables) == ["train"]
        return clean(
            {"" if whole else split: read(table) for split, table in tables.items()}, hub, cfg
        )

    fingerprints = [table._fingerprint for table in tables.values()]
    return Source(
        "hub",
        hub,
        repr((hub, cfg.hub_config, cfg.languages, cfg.limit, fingerprints)),
        load,
    )


def clean(tables: Mapping[str, Iterable[Pair]], name: str, cfg: "TranslationData") -> Texts:
    """Returns the normalized pairs of each split, without duplicates and overlong pairs. Raises
    UserError for an empty side.
    """
    longest, splits, dropped = cfg.max_tokens, {}, 0
    for split, pairs in tables.items():
        rows: dict[tuple[str, str], int] = {}  # of each pair, its first
        for row, *sides in islice(pairs, cfg.limit):
            source, target = (
                symbols_of(side, cfg.lower, tokenizer)
                for side, tokenizer in zip(sides, tokenizers_of(cfg), strict=True)
            )
            if not source or not target:
                where, side = (
                    f"{name}, {split}" if split else name,
                    "target" if source else "source",
                )
                raise UserError(
                    f"{where}: row {row} (counted from 0) has an empty {side}: fill it, or"
                    " remove the row"
                )
            # n words have n - 1 spaces between them
            if longest is not None and max(source.count(" "), target.count(" ")) >= longest:
                dropped += 1
            else:
                rows.setdefault((source, target), row)
        texts, targets = [source for source, _ in rows], [[target] for _, target in rows]
        splits[split] = Split(texts, targets, np.array(list(rows.values()), dtype=np.int64))
    if dropped:
        log.info(
            "%s: omitted %d pairs with a side longer than data.max_tokens=%d",
            name,
            dropped,
            longest,
        )
    return Texts(splits, dropped=dropped)
