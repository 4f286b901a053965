"""From raw reviews to ragged ids: once per content and settings, then memory-mapped from the cache."""

import json
import logging
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from imdbattn.data.cache import build_once, cache_root, sha256_of
from imdbattn.data.glove import Glove, load_glove
from imdbattn.data.ragged import Ragged, as_tensor
from imdbattn.data.sources import Reviews, Source, cut, find_source, fingerprint, uncut_reviews
from imdbattn.data.tokenization import Tokenizer, signature
from imdbattn.errors import UserError

log = logging.getLogger(__name__)

FORMAT = 4  # of a cache entry; raise it when what is written below changes


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


def prepare(cfg: dict, uncut: bool = False) -> Corpus:
    """The corpus that the `data` settings describe.

    uncut: no split is made where the source has none, and one file is a test set as a whole (for scoring).
    Raises UserError for anything that cannot be read.
    """
    root = cache_root(cfg["cache_dir"])
    glove = load_vectors(cfg)
    source = find_source(cfg)
    shares = None if uncut else (cfg["validation_share"], cfg["test_share"])
    identity = [FORMAT, source.name, source.key, shares, signature(cfg["tokenizer"]), glove.fingerprint]
    key = sha256(json.dumps(identity).encode()).hexdigest()[:24]

    def build(folder: Path) -> None:
        log.info("Reading and tokenising: %s", source.name)
        reviews = source.load()
        reviews = uncut_reviews(reviews, source) if shares is None else cut(reviews, source, *shares)
        write(folder, reviews, source, Tokenizer(cfg["tokenizer"], glove.words))

    folder = build_once(root / "tokens" / key, build)
    meta = json.loads((folder / "meta.json").read_text())
    splits = {name: read_split(folder / f"{name}.arrow", checksum) for name, checksum in meta.pop("checksums").items()}
    return Corpus(splits, glove, **meta, folder=folder)


def texts_file(split: str) -> str:
    return f"{split}_texts.parquet"


def load_vectors(cfg: dict) -> Glove:
    """The vectors that the `data` settings name."""
    return load_glove(**cfg["glove"], cache_dir=cfg["cache_dir"])


def write(folder: Path, reviews: Reviews, source: Source, tokenizer: Tokenizer) -> None:
    """Fills a cache entry: meta.json and an Arrow file for each split, which `datasets.Dataset.from_file` opens too."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from datasets.arrow_writer import ArrowWriter

    known = total = 0
    for name, split in reviews.splits.items():
        ids = tokenizer.encode(split.texts)
        offsets = np.cumsum([0, *map(len, ids)])
        flat = np.fromiter((token for review in ids for token in review), dtype=np.int32, count=offsets[-1])
        known, total = known + int((flat > 2).sum()), total + len(flat)
        if empty := int((np.diff(offsets) == 0).sum()):
            log.warning("%s: %d reviews of %s have no words; they are kept and scored", source.name, empty, name)
        table = pa.table(
            {
                "ids": pa.LargeListArray.from_arrays(offsets, flat),
                "label": pa.array(split.labels, pa.int64()),
                "row": pa.array(split.rows, pa.int64()),
            }
        )
        writer = ArrowWriter(path=str(folder / f"{name}.arrow"))
        writer.write_table(table, writer_batch_size=max(len(table), 1))  # one chunk, so that reading copies nothing
        writer.finalize()
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
        "known": known / max(total, 1),
        "checksums": {name: sha256_of(folder / f"{name}.arrow") for name in reviews.splits},
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def read_split(file: Path, checksum: str) -> Ragged:
    """A split of a cache entry, memory-mapped. Raises UserError when the file is not what was written."""
    import pyarrow as pa

    if not file.exists() or sha256_of(file) != checksum:
        raise UserError(f"the cached {file} is damaged: delete the folder {file.parent} and run again")
    table = pa.ipc.open_stream(pa.memory_map(str(file))).read_all()
    ids = table["ids"].combine_chunks() if table["ids"].num_chunks != 1 else table["ids"].chunk(0)
    flat, offsets, labels = (as_tensor(a.to_numpy()) for a in (ids.values, ids.offsets, table["label"]))
    return Ragged(flat, offsets, labels, table["row"].to_numpy())
