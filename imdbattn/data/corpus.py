"""From raw reviews to ragged ids: once per content and settings, then memory-mapped from the cache."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from imdbattn.data.glove import Glove, load_glove
from imdbattn.data.ragged import Ragged
from imdbattn.data.reviews import Reviews, Source, cut, find_source, fingerprint, uncut_reviews, unlabelled_source
from imdbattn.data.tokens import UNK, Tokenizer, signature
from imdbattn.files import build_once, cache_root, check_seal, seal

log = logging.getLogger(__name__)

FORMAT = 8  # of a cache entry; raise it when what is written below changes


@dataclass(frozen=True)
class Corpus:
    """Three splits of ids, the vectors that the ids point into, and which test set this is."""

    splits: dict[str, Ragged]
    glove: Glove
    label_names: list[str]
    source: str  # hub, packaged, path or order_probe: what `auto` decided
    test_set: str  # a name for a person
    fingerprints: dict[str, str]  # of each split's texts and labels
    dropped: int  # training reviews left out because their text stands in another split
    known: float  # share of the tokens that have a GloVe row
    source_key: str  # 16 hex digits of what the source was made of
    folder: Path  # of the cache entry

    def texts(self, split: str) -> Path:
        """A Parquet file with `row` and `text` of the reviews of `split`, in its order; there is none of training."""
        return self.folder / texts_file(split)

    def facts(self) -> dict[str, Any]:
        """What metrics.json says of the data."""
        return {"labels": self.label_names, "known_tokens": self.known}


def prepare(cfg: dict, uncut: bool = False) -> Corpus:
    """The corpus that the `data` settings describe.

    uncut: no split is made where the source has none, and one file is a test set as a whole (for scoring).
    Raises UserError for anything that cannot be read.
    """
    glove = load_vectors(cfg)
    source = find_source(cfg)
    shares = None if uncut else (cfg["validation_share"], cfg["test_share"])
    identity = [FORMAT, source.name, source.key, shares, signature(cfg["tokenizer"]), glove.fingerprint]

    def build(folder: Path) -> None:
        import pyarrow as pa

        log.info("Reading and tokenising: %s", source.name)
        reviews = source.load()
        pa.default_memory_pool().release_unused()  # twice the size of the texts, which Arrow would keep
        reviews = uncut_reviews(reviews, source) if shares is None else cut(reviews, source, *shares)
        write(folder, reviews, source, Tokenizer(cfg["tokenizer"], glove.words))

    folder, meta = cached(cfg, identity, build)
    splits = {name: read_split(folder / f"{name}.arrow") for name in meta["fingerprints"]}
    for name, split in splits.items():
        if empty := int((split.lengths == 0).sum()):
            log.warning("%s: %d reviews of %s have no words; they are kept and scored", source.name, empty, name)
    return Corpus(splits, glove, **meta, folder=folder)


def cached(cfg: dict, identity: list[Any], build: Callable[[Path], None]) -> tuple[Path, dict[str, Any]]:
    """The cache entry of that identity, built where there is none, and its meta.json. Raises UserError if damaged."""
    key = sha256(json.dumps(identity).encode()).hexdigest()[:24]
    folder = build_once(cache_root(cfg["cache_dir"]) / "tokens" / key, build)
    check_seal(folder)
    return folder, json.loads((folder / "meta.json").read_text())


@dataclass(frozen=True)
class Texts(Corpus):
    """A corpus whose labels are not looked at: its training reviews, and those without a label."""

    def facts(self) -> dict[str, Any]:
        return {"items": "masked words", "known_tokens": self.known}


def prepare_unlabelled(cfg: dict) -> Texts:
    """The corpus of `prepare`, with the reviews of data.unlabelled, if any, behind those of training.

    A text that stands in validation or test is left out. Raises UserError for anything that cannot be read.
    """
    corpus = prepare(cfg)
    if cfg.get("unlabelled"):
        held_out = {plain(text) for split in ("validation", "test") for text in read_texts(corpus.texts(split))}
        source = unlabelled_source(cfg["unlabelled"], cfg["encoding_errors"])
        identity = [FORMAT, "unlabelled", source.key, signature(cfg["tokenizer"]), corpus.glove.fingerprint]
        identity += [corpus.fingerprints["validation"], corpus.fingerprints["test"]]

        def build(folder: Path) -> None:
            reviews = source.load()
            split = reviews.splits["train"]
            kept = [place for place, text in enumerate(split.texts) if plain(text) not in held_out]
            left = Reviews({"train": split.take(np.array(kept, dtype=int))}, [], dropped=len(split) - len(kept))
            write(folder, left, source, Tokenizer(cfg["tokenizer"], corpus.glove.words))

        folder, meta = cached(cfg, identity, build)
        more = meta["fingerprints"]["train"]
        corpus = replace(
            corpus,
            splits=corpus.splits | {"train": corpus.splits["train"].joined(read_split(folder / "train.arrow"))},
            fingerprints=corpus.fingerprints | {"unlabelled": more},
            source_key=sha256(f"{corpus.source_key} {more}".encode()).hexdigest()[:16],
        )
    return Texts(**vars(corpus))


def plain(text: str) -> str:
    """A text as it is compared: however its words are spaced."""
    return " ".join(text.split())


def read_texts(file: Path) -> list[str]:
    import pyarrow.parquet as pq

    return pq.read_table(file, columns=["text"])["text"].to_pylist()


def texts_file(split: str) -> str:
    return f"{split}_texts.parquet"


def load_vectors(cfg: dict) -> Glove:
    """The vectors that the `data` settings name."""
    return load_glove(**cfg["glove"], cache_dir=cfg["cache_dir"])


def write(folder: Path, reviews: Reviews, source: Source, tokenizer: Tokenizer) -> None:
    """Fills a cache entry: meta.json and an Arrow file for each split, which `datasets.Dataset.from_file` opens too."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # In one call, which tokenises what the splits have in common once.
    all_ids, all_offsets = tokenizer.encode_flat(text for split in reviews.splits.values() for text in split.texts)
    end = 0
    for name, split in reviews.splits.items():
        start, end = end, end + len(split)
        offsets = all_offsets[start : end + 1] - all_offsets[start]
        flat = all_ids[all_offsets[start] : all_offsets[end]]
        table = pa.table(
            {
                "ids": pa.LargeListArray.from_arrays(offsets, flat),
                "label": pa.array(split.labels, pa.int64()),
                "row": pa.array(split.rows, pa.int64()),
            }
        )
        with pa.ipc.new_stream(folder / f"{name}.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=max(len(table), 1))  # one chunk, so that reading copies nothing
        if name != "train":
            texts = pa.table({"row": table["row"], "text": split.texts})
            pq.write_table(texts, folder / texts_file(name), compression="zstd")
    if reviews.dropped:
        log.info("%s: %d training reviews dropped, their text stands in another split", source.name, reviews.dropped)
    meta = {
        "label_names": reviews.label_names,
        "source": source.kind,
        "source_key": source.checksum,
        "test_set": reviews.test_set,
        "fingerprints": {name: fingerprint(split) for name, split in reviews.splits.items()},
        "dropped": reviews.dropped,
        "known": int((all_ids > UNK).sum()) / max(len(all_ids), 1),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))
    seal(folder)


def read_split(file: Path) -> Ragged:
    """A split of a cache entry, memory-mapped."""
    import pyarrow as pa

    table = pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    columns = (table[name] for name in ("ids", "label", "row"))  # in one chunk, as written; in none without reviews
    ids, labels, rows = (c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in columns)
    # Through DLPack, for `to_numpy` imports pandas: half a second, and 50 MB.
    flat, offsets, labels = (torch.from_dlpack(array) for array in (ids.values, ids.offsets, labels))
    return Ragged(flat, offsets, labels, np.from_dlpack(rows))
