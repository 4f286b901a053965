"""Reviews as ids: read, split and encoded once, then memory-mapped from the cache."""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from safetensors.torch import load_file
from torch import Tensor

from imdbattn.data.ragged import Ragged
from imdbattn.data.sources.imdb import packaged_source
from imdbattn.data.splits import Source, Texts, cut_reviews, fingerprint, splits_to_score
from imdbattn.data.tokenizer import (
    FIRST_WORD,
    LETTER,
    UNK,
    AnyTokenizer,
    Tokenizer,
    signature_of_rules,
)
from imdbattn.data.word_vectors import WordVectors, load_vectors
from imdbattn.errors import UserError, one_line
from imdbattn.io.files import build_once, cache_root, with_home
from imdbattn.settings.schema import ReviewDataSettings

log = logging.getLogger(__name__)

TOKENS_FORMAT = 20  # version of the cache entries; increment it when their content changes
FEW_KNOWN = 0.7  # a smaller share of known words causes a warning
VECTORS_REMEDY = (
    "the vectors may be for another language (set data.vectors.path), or their words may have"
    " capital letters, or the text no spaces between words (set data.tokenizer)"
)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All splits as ids, and the source of the data."""

    # name of a split -> a Ragged, or an object with the same `rows`, `to`, `batches`,
    # `batch_lengths` and length
    splits: Mapping[str, Any]
    items_name: str = "reviews"  # plural
    source_kind: str  # hub, path and others; what data.source=auto chose
    # checksum of the source; with data.extra, a hyphen and the checksum of these texts follow
    source_key: str
    test_set: str  # name of the test set, for display
    fingerprints: dict[str, str]  # one for each split's texts and labels
    facts: dict[str, object]  # written into metrics.json


@dataclass(frozen=True, kw_only=True)
class ReviewCorpus(Corpus):
    """Reviews, and the vectors that their ids index."""

    splits: dict[str, Ragged]
    label_names: list[str]
    vectors: WordVectors
    folder: Path  # the cache entry
    added: int = 0  # number of training texts from data.extra, which come last
    # (N, C) float32, probabilities of the training reviews' classes
    targets_NC: Tensor | None = None

    def texts_file(self, split: str) -> Path:
        """Returns the Parquet file with `row` and `text` of validation or test, in order."""
        return self.folder / f"{split}_texts.parquet"


def load_reviews(
    settings: ReviewDataSettings, keep_splits: bool = False, vectors: WordVectors | None = None
) -> ReviewCorpus:
    """Returns the corpus that the `data` settings describe, from the cache if possible.

    keep_splits: whether to keep the splits as they are, for scoring; a single file is the test set.
    vectors: used instead of the vectors that the settings name.
    """
    vectors = vectors or load_vectors(settings.vectors, settings.cache_dir)
    source = find_source(settings)

    def build(folder: Path) -> None:
        log.info("Reading and tokenizing: %s", source.name)
        reviews = read_splits(source, settings, keep_splits)
        tokenizer = tokenizer_of(settings.tokenizer, vectors.words)
        write_cache_entry(folder, reviews, source, tokenizer, vectors)

    cache_key = {
        "format": TOKENS_FORMAT,
        "source": (source.name, source.identity),
        "splits": (keep_splits, settings.validation_share, settings.test_share),
        "folds": (settings.fold, settings.folds),
        "limit": settings.limit,
        "tokenizer": source.tokenizer_version or signature_of_rules(str(settings.tokenizer)),
        "vectors": vectors.fingerprint,
    }
    entry = sha256(json.dumps(cache_key).encode()).hexdigest()[:24]
    folder = build_once(cache_root(settings.cache_dir) / "tokens" / entry, build)
    meta = json.loads((folder / "meta.json").read_text())
    splits = {name: read_split(folder / f"{name}.safetensors") for name in meta["fingerprints"]}
    corpus = ReviewCorpus(splits=splits, vectors=vectors, folder=folder, **meta)
    log_reviews(corpus, source.name)
    minimum = 0.0 if keep_splits else settings.min_known
    check_known_share(meta["facts"]["known_words"], "words", source.name, VECTORS_REMEDY, minimum)
    return corpus


def read_splits(source: Source, settings: ReviewDataSettings, keep_splits: bool = False) -> Texts:
    """Returns the reviews of a source, divided as `data` settings describe.

    keep_splits: see `load_reviews`. Raises UserError if that is impossible.
    """
    reviews, name, limit = source.load(), source.name, settings.limit
    if keep_splits:
        return splits_to_score(reviews, name, limit)
    shares = {"validation": settings.validation_share, "test": settings.test_share}
    if settings.fold and settings.folds:
        from imdbattn.data.folds import cut_fold

        return cut_fold(reviews, name, shares, settings.fold, settings.folds, limit)
    return cut_reviews(reviews, name, shares, limit)


def log_reviews(corpus: ReviewCorpus, source: str) -> None:
    """Logs the number of reviews of each class and split, unless they are the packaged ones, and
    possible mistakes: omitted training reviews, reviews without words, and texts that occur several
    times.

    source: the name of the source.
    """
    if dropped := corpus.facts["dropped"]:
        omitted = f"omitted {dropped} training reviews"
        log.info("%s: %s whose text is also in another split", source, omitted)
    repeated_texts: Any = corpus.facts["repeated_texts"]
    for name, split in corpus.splits.items():
        if corpus.source_kind != "packaged":
            counts = split.labels.bincount(minlength=len(corpus.label_names)).tolist()
            pairs = zip(corpus.label_names, counts, strict=True)
            sizes = ", ".join(f"{label} {count:,}" for label, count in pairs)
            log.info("%-10s %d reviews: %s", name, len(split), one_line(sizes))
        if empty := int((split.lengths == 0).sum()):
            where = f"{empty} reviews of {name}"
            log.warning("%s: %s have no words; they are kept and scored", source, where)
        repeated = repeated_texts.get(name, {"reviews": 0})
        if repeated["reviews"]:
            many = f"{repeated['texts']} texts occur several times in {name}"
            count = repeated["reviews"]
            log.info("%s: %s (%d reviews); intervals count each once", source, many, count)


def check_known_share(share: float, items: str, source: str, remedy: str, minimum: float) -> None:
    """Logs the share of known items: words with letters that have a vector, or symbols of pairs
    that occur in training. Warns if it is below FEW_KNOWN.

    remedy: the usual causes, and the settings that change them. minimum: the setting
    data.min_known. Raises UserError if the share is smaller.
    """
    line = f"{source}: {share:.1%} of the {items} are known"
    if share < minimum:
        raise UserError(f"{line}: {remedy}; data.min_known=0 trains anyway")
    if share < FEW_KNOWN:
        log.warning("%s, the others are read as <unk>: %s", line, remedy)
    else:
        log.info("%s", line)


def tokenizer_of(setting: object, words: Sequence[str]) -> AnyTokenizer:
    """Returns the tokenizer that turns texts into ids of `words`. Raises UserError for a callable
    that cannot be imported.

    setting: data.tokenizer, either a tokenizer's name or `_target_` and keyword arguments.
    """
    if isinstance(setting, str):
        return Tokenizer(setting, words)
    from imdbattn.data.custom_tokenizer import CustomTokenizer

    return CustomTokenizer(setting, words)


def custom_tokenizer_version(setting: object) -> str:
    """Returns a checksum that changes with the code of a custom tokenizer; "" for others."""
    if isinstance(setting, str):
        return ""
    from imdbattn.settings.code_version import code_version

    return code_version(setting, "data.tokenizer")


# --- the source of the reviews --------------------------------------------------------------------


def find_source(settings: ReviewDataSettings) -> Source:
    """Returns the source that the `data` settings name, with the version of a custom tokenizer.

    Modules of sources other than the packaged one are imported only if they are named. Raises an
    exception for data that cannot be found.
    """
    if not isinstance(settings.source, str):
        from imdbattn.data.sources.custom import custom_reviews

        source = custom_reviews(settings.source, settings.label_names)
    elif settings.source == "order_probe" and settings.probe:
        from imdbattn.data.sources.order_probe import order_probe_source

        source = order_probe_source(settings.probe)
    elif settings.path:
        from imdbattn.data.user_files.review_files import path_source

        source = path_source(with_home(settings.path), settings)
    elif settings.hub or settings.source == "hub":
        from imdbattn.data.sources.hub import hub_reviews

        source = hub_reviews(settings)
    else:  # also with data.source=auto
        source = packaged_source()
    if version := custom_tokenizer_version(settings.tokenizer):
        identity = f"{source.identity}, tokenizer {version}"
        source = replace(source, identity=identity, tokenizer_version=version)
    return source


# --- cache ----------------------------------------------------------------------------------------


def write_cache_entry(
    folder: Path, reviews: Texts, source: Source, tokenizer: AnyTokenizer, vectors: WordVectors
) -> None:
    """Writes a cache entry: meta.json, the ids of all splits, the texts of validation and test."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tokens = known = known_words = unknown_words = 0
    fingerprints = {}
    repeated = {}  # numbers of texts that occur several times in a split, and of their reviews
    has_letter_V = np.array([LETTER.search(word) is not None for word in vectors.words], bool)
    for name, split in reviews.splits.items():
        ids, offsets, unknown = tokenizer.encode(split.texts)
        is_known = ids > UNK
        tokens += len(ids)
        known += int(is_known.sum())
        known_words += int(has_letter_V[ids[is_known] - FIRST_WORD].sum())
        unknown_words += unknown
        columns = {"ids": ids, "offsets": offsets, "labels": split.labels, "rows": split.rows}
        # a file that save_file writes is closed to other users of the cache
        (folder / f"{name}.safetensors").write_bytes(save(columns))
        if name != "train":
            times = [count for count in Counter(split.texts).values() if count > 1]
            repeated[name] = {"texts": len(times), "reviews": sum(times)}
            texts = pa.table({"row": split.rows, "text": split.texts})
            pq.write_table(texts, folder / f"{name}_texts.parquet", compression="zstd")
        fingerprints[name] = fingerprint(split.fingerprint_lines())
    words = known_words + unknown_words
    meta = {
        "label_names": reviews.label_names,
        "source_kind": source.kind,
        "source_key": source.key,
        "test_set": reviews.test_set,
        "fingerprints": fingerprints,
        "facts": {
            "labels": reviews.label_names,
            "known_tokens": known / max(tokens, 1),
            "known_words": known_words / words if words else 1.0,
            "repeated_texts": repeated,
            "dropped": reviews.dropped,
            **({"tokenizer": source.tokenizer_version} if source.tokenizer_version else {}),
            **reviews.facts,
        },
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def read_split(file: Path) -> Ragged:
    """Returns a split of a cache entry, memory-mapped."""
    columns = load_file(file)
    rows_N = columns["rows"].numpy()
    return Ragged(columns["ids"], columns["offsets"], columns["labels"], rows_N)


def read_texts(file: Path) -> list[str]:
    import pyarrow.parquet as pq

    return pq.read_table(file, columns=["text"])["text"].to_pylist()
