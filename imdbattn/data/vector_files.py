"""Word vectors that are not in the wheel: users' files, the archive of GloVe 6B, and torchtext.

    vectors.txt   a word and its numbers on each line (GloVe), or such lines after one with the
    vectors.vec   number of words and of dimensions (word2vec, fastText, Chinese-Word-Vectors)
    vectors.bin   word2vec's binary form: such a line; then each word, a space, and its float32
                  (Mikolov et al., https://code.google.com/archive/p/word2vec)

Each may be compressed as .gz, .bz2 or .xz, or be in a .zip.

Shape suffixes: W words, D numbers per word.
"""

import io
import math
import re
import ssl
import zipfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, takewhile
from pathlib import Path, PurePath
from typing import BinaryIO, cast

import numpy as np

from imdbattn.data.user_files.tables import COMPRESSED, open_bytes
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.io.files import acquire_lock, sha256_of

Table = tuple[list[str], np.ndarray]  # W words, and their vectors (W, D)

NAMES = (".txt", ".vec", ".bin")  # suffixes of the file in an archive
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # a byte order mark
COUNTS = re.compile(rb"(\d+)[ \t](\d+)[ \t\r\n]*")  # W and D, as word2vec writes them

ZIP = "glove.6B.zip"  # 862 MB, all dimensions
# JuliaText/Embeddings.jl has the same checksum.
ZIP_SHA256 = "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb"


# --- files ----------------------------------------------------------------------------------------


def read_vectors(path: Path, dim: int | None) -> Table:
    """Reads all words and vectors of a file.

    dim: D, or None if it follows from the file. Raises UserError that names the file and the wrong
    line or word, such as a repeated word or a number that is not finite.
    """
    with wrapping_errors(path), open_vectors(path, dim) as (suffix, stream):
        words, vectors_WD = (read_binary_vectors if suffix == ".bin" else read_text_vectors)(stream)
        first: dict[str, int] = {}
        for number, word in enumerate(words, 1):
            if (other := first.setdefault(word, number)) != number:
                raise ValueError(f"word {number}, {word!r}, is word {other}, too: remove one")
        finite_W = np.isfinite(vectors_WD).all(1)
        if not finite_W.all():
            place = int(finite_W.argmin())
            raise ValueError(f"word {place + 1}, {words[place]!r}, has a number that is not finite")
        if dim not in (None, vectors_WD.shape[1]):
            raise ValueError(
                f"it has {vectors_WD.shape[1]} dimensions: omit data.vectors.dim={dim}"
            )
        return words, vectors_WD


@contextmanager
def open_vectors(path: Path, dim: int | None) -> Iterator[tuple[str, BinaryIO]]:
    """Yields the suffix of a file, without its compression's suffix, and its bytes as a stream.

    Of several files in a .zip, the one whose name ends in .{dim}d.txt is chosen. Raises ValueError
    unless there is exactly one.
    """
    suffix = path.suffix.lower()
    if suffix != ".zip":
        with open_bytes(path) as stream:
            yield PurePath(path.stem if suffix in COMPRESSED else path).suffix.lower(), stream
        return
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith(NAMES)]
        names = [name for name in names if not name.startswith("__MACOSX")]
        chosen = [name for name in names if name.lower().endswith(f".{dim}d.txt")] or names
        if len(chosen) != 1:
            raise ValueError(
                f"it has {len(chosen)} files of vectors ({', '.join(chosen[:5])}): unpack one, or"
                " set data.vectors.dim, such as 100 for glove.6B.100d.txt"
            )
        with archive.open(chosen[0]) as member:
            yield PurePath(chosen[0]).suffix.lower(), cast(BinaryIO, member)


def read_binary_vectors(stream: BinaryIO) -> Table:
    """Reads word2vec's binary form.

    Raises ValueError for a file with fewer or more words than its first line announces.
    """
    reader = io.BufferedReader(cast(io.RawIOBase, stream), 1 << 20)
    match = COUNTS.fullmatch(reader.readline(100))
    if match is None:
        raise ValueError(
            "it does not begin with two counts, as word2vec's .bin does; for fastText, use the .vec"
            " file"
        )
    count, width = int(match[1]), int(match[2])
    words, rows = [], []
    for number in range(1, count + 1):
        word = bytearray()
        while (sign := reader.read(1)) not in (b" ", b""):
            if sign != b"\n":  # it may precede a word; words.txt of the cache has one on each line
                word += sign
        row = reader.read(4 * width)
        if len(row) < 4 * width:
            raise ValueError(f"it ends in word {number} of {count}: download it again")
        words.append(word.decode())
        rows.append(row)
    if reader.read(100).strip():
        raise ValueError(
            f"its first line announces {count:,} words, but more follow; text must be named .vec"
        )
    return words, np.frombuffer(b"".join(rows), "<f4").reshape(count, width)


def read_text_vectors(stream: BinaryIO) -> Table:
    """Reads a word and D numbers on each line, with or without a line of counts above.

    Words may contain spaces, as in GloVe 840B: they are separated from their numbers from the
    right. Raises ValueError that names the line unless every line is a word with D numbers, or if
    the first line announces another number of words. Blank lines are skipped.
    """
    first = stream.readline().removeprefix(BYTE_ORDER_MARK)
    counts = COUNTS.fullmatch(first)
    numbers_of_first = takewhile(is_number, reversed(first.rstrip(b" \r\n").split(b" ")[1:]))
    width = int(counts[2]) if counts else sum(1 for _ in numbers_of_first)
    if width == 0:
        raise ValueError(
            "it has no vectors: its first line does not end in numbers that single spaces separate;"
            " word2vec's binary form must be named .bin"
        )
    words, numbers = [], array("f")
    for number, line in enumerate(stream if counts else chain([first], stream), 2 if counts else 1):
        if not line.strip():
            continue
        word, *row = line.rstrip(b" \r\n").rsplit(b" ", width)  # fastText writes a blank at the end
        try:
            numbers.extend(map(float, row))
            has_more = b" " in word and is_number(word.rpartition(b" ")[2])
            if len(row) < width or has_more:
                raise ValueError
            words.append(word.decode())
        except ValueError as error:
            raise ValueError(
                f"line {number} is not a word and {width} numbers, separated by single spaces; it"
                f" starts with {ascii(line[:60])[1:]}"
            ) from error
    if counts and len(words) != int(counts[1]):
        raise ValueError(
            f"its first line announces {int(counts[1]):,} words, but it has {len(words):,}: it may"
            " have been cut off"
        )
    return words, np.frombuffer(numbers, np.float32).reshape(-1, width)


def is_number(text: bytes) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text))
    return False


# --- GloVe 6B -------------------------------------------------------------------------------------


def read_torchtext(dim: int, cache: Path) -> Table:
    """Returns GloVe 6B as torchtext 0.18, which loads only with torch 2.3, reads it."""
    verifying = ssl._create_default_https_context
    try:
        from torchtext.vocab import GloVe

        table = GloVe(name="6B", dim=dim, cache=str(cache))
    finally:
        # torchtext disables certificate checks for the whole process
        ssl._create_default_https_context = verifying
    return list(table.itos), table.vectors.numpy()


def download(folder: Path) -> Path:
    """Downloads glove.6B.zip unless it is there. Raises UserError for a wrong checksum."""
    from huggingface_hub import hf_hub_download

    file = folder / ZIP
    with acquire_lock(file.with_name(f"{ZIP}.lock")):  # one archive holds all dimensions
        if not file.exists():
            part = Path(hf_hub_download("stanfordnlp/glove", ZIP, local_dir=folder / "download"))
            if sha256_of(part) != ZIP_SHA256:
                part.unlink()
                raise UserError(f"{ZIP} was downloaded with a wrong checksum: try again")
            part.rename(file)
    return file
