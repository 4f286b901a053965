"""Opens a file of vectors, whatever its compression, and chooses its reader by its name.

    vectors.txt   a word and its numbers on each line (GloVe), or such lines after one with the
    vectors.vec   number of words and of dimensions (word2vec, fastText, Chinese-Word-Vectors)
    vectors.bin   word2vec's binary form

Each may be compressed as .gz, .bz2 or .xz, or be in a .zip. Shapes: V words, D numbers per word.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import BinaryIO, cast

import numpy as np

from imdbattn.data.user_files.tables import COMPRESSED, open_bytes
from imdbattn.data.vectors.binary import read_binary
from imdbattn.data.vectors.text import read_text_vectors
from imdbattn.errors import wrapping_errors

Table = tuple[list[str], np.ndarray]  # V words, and their vectors (V, D)
NAMES = (".txt", ".vec", ".bin")  # of the file in an archive


def read_vectors(path: Path, dim: int | None) -> Table:
    """Reads all words and vectors of a file.

    dim: D, or None if it follows from the file. Raises UserError of one line that names the file,
    and the line or word that is wrong; also for a file of another form.
    """
    with wrapping_errors(path), opened(path, dim) as (name, stream):
        read = read_binary if PurePath(name).suffix.lower() == ".bin" else read_text_vectors
        words, vectors_VD = read(stream)
        check_table(words, vectors_VD)
        if dim not in (None, vectors_VD.shape[1]):
            raise ValueError(
                f"it has {vectors_VD.shape[1]} dimensions: omit data.glove.dim={dim}, they follow"
                " from the file"
            )
        return words, vectors_VD


def check_table(words: list[str], vectors_VD: np.ndarray) -> None:
    """Raises ValueError unless there are words, all different, and all numbers are finite."""
    if not words:
        raise ValueError("it has no vectors")
    first: dict[str, int] = {}
    for number, word in enumerate(words, 1):
        if (other := first.setdefault(word, number)) != number:
            raise ValueError(f"word {number}, {word!r}, is word {other}, too: remove one of them")
    finite_V = np.isfinite(vectors_VD).all(1)
    if not finite_V.all():
        place = int(finite_V.argmin())
        raise ValueError(f"word {place + 1}, {words[place]!r}, has a number that is not finite")


@contextmanager
def opened(path: Path, dim: int | None) -> Iterator[tuple[str, BinaryIO]]:
    """Yields the name of the file without that of its compression, and its bytes as a stream.

    Of several files in a .zip, the one whose name ends in .{dim}d.txt is chosen.
    """
    suffix = path.suffix.lower()
    if suffix in COMPRESSED:
        with open_bytes(path) as stream:
            yield path.stem, stream
    elif suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            name = member_of(archive.namelist(), dim)
            with archive.open(name) as member:
                yield name, cast(BinaryIO, member)
    else:
        with open(path, "rb") as file:
            yield path.name, file


def member_of(names: list[str], dim: int | None) -> str:
    """Returns the name of the vectors in an archive. Raises ValueError unless there is one."""
    candidates = [
        name
        for name in names
        if PurePath(name).suffix.lower() in NAMES and not name.startswith("__MACOSX")
    ]
    chosen = [name for name in candidates if name.lower().endswith(f".{dim}d.txt")] or candidates
    if len(chosen) == 1:
        return chosen[0]
    if not candidates:
        raise ValueError(f"it has no file that ends in {', '.join(NAMES)}")
    raise ValueError(
        f"it has several files of vectors ({', '.join(candidates[:5])}): unpack one, or set"
        " data.glove.dim to the number before its d.txt"
    )
