"""For any bytes, a reader gives a result with its invariants, or one line that describes the error.

Briefly in `make test`; for ten minutes, each time with a different seed, in `make test-slow`.
"""

import json
import random
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from imdbattn.data.glove import read_file
from imdbattn.data.pairs import prepare
from imdbattn.data.reviews import find_source, folded, label_of
from imdbattn.data.tokens import FIRST_WORD, RULES, UNK, Tokenizer
from imdbattn.data.vocabulary import MARKERS
from imdbattn.errors import UserError
from imdbattn.settings.cli import conf_dir
from imdbattn.settings.schema import Translation

SECONDS = 120  # of each reader's long run
DATA = {"source": "auto", "text_column": "text", "label_column": "label", "label_names": None}
DIM = 3

# --- what is read ----------------------------------------------------------------------------------------------------

PIECES = [sign.encode() for sign in ("\"',\n\r\t \0{}[]:\\e10-.")] + [
    *(b"\r\n", b"\\u", b"\xef\xbb\xbf", b"\xff", b"\xc3", b"\xe9", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\xc2\x85"),
    *(b"text", b"label", b"pos", b"neg", b"nan", b"NA", b"inf", b"null", b"true", b"1e39", b"\xd9\xa3", b"PK\3\4"),
]
CONTENT = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4)), max_size=60).map(b"".join)
TEXT = st.one_of(
    st.text(max_size=40),
    st.text(st.sampled_from("aIn't .<br />\"—–…'`´\u0130\u03a3\x85\x97\u2028\u0301🎬10/"), max_size=40),
)
LABEL = st.one_of(st.sampled_from(["neg", "pos", "1", "0.0", " pos", "", "nan"]), st.text(max_size=5))


@st.composite
def spoilt(draw, whole: st.SearchStrategy[bytes]) -> bytes:
    """A valid file in which something is removed, inserted or reversed."""
    content = draw(whole)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 9)))
        content = content[:start] + draw(CONTENT.map(lambda found: found[:9])) + content[end:]
    return content


def csv_field(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


ROWS = st.lists(st.tuples(TEXT, LABEL), max_size=8)
CSV = ROWS.map(lambda rows: "text,label\n" + "".join(f"{csv_field(t)},{csv_field(n)}\n" for t, n in rows))
JSON = ROWS.map(lambda rows: "".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in rows))
NUMBER = st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-9, 9)).map(str)
WORD = st.text(st.characters(codec="utf-8", exclude_characters=" \r\n"), min_size=1, max_size=5)
LINE = st.tuples(WORD, NUMBER, NUMBER, NUMBER).map(" ".join)
VECTORS = st.lists(LINE, max_size=8).map(lambda found: "".join(f"{line}\n" for line in found))


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# --- the laws --------------------------------------------------------------------------------------------------------


def one_line(error: UserError, path: Path) -> None:
    assert str(path) in str(error)
    assert len(str(error).splitlines()) == 1, str(error)
    assert len(str(error)) < 2000


def reviews(folder, name: str, content: bytes, encoding_errors: str) -> list[str] | None:
    """The texts that are read from a file; None where it is refused."""
    path = folder / name
    path.write_bytes(content)
    try:
        found = find_source(SimpleNamespace(**DATA | {"path": str(path), "encoding_errors": encoding_errors})).load()
    except UserError as error:
        one_line(error, path)
        return None
    split = found.splits[""]
    assert len(split.texts) == len(split.labels) == len(split.rows) > 0
    assert all(isinstance(text, str) and "\0" not in text for text in split.texts)
    assert not split.labels.size or (0 <= split.labels.min() <= split.labels.max() < len(found.label_names))
    assert all(name == name.strip() and name for name in found.label_names)
    "".join(split.texts).encode()  # UTF-8 through and through
    return split.texts


def fuzz_reviews(folder, data, contents, names: list[str], written) -> None:
    """Any bytes in a file of one of the names; and rows, which come back as they were from what `written` makes."""
    content = data.draw(contents)
    reviews(folder, data.draw(st.sampled_from(names)), content, data.draw(st.sampled_from(["strict", "replace"])))
    rows = data.draw(ROWS)
    labels = {label_of(n) for _, n in rows}  # of which no two may be the same word
    valid = len({folded(n) for n in labels}) == len(labels) and not {"", "nan"} & {folded(n) for n in labels}
    if rows and valid and all(readable(t) and readable(n) for t, n in rows):
        assert reviews(folder, names[0], encoded(written(rows)), "strict") == [text for text, _ in rows]


def fuzz_csv(folder, data) -> None:
    def written(rows) -> str:
        return "text,label\n" + "".join(f"{csv_field(t)},{csv_field(n)}\n" for t, n in rows)

    contents = st.one_of(CONTENT, spoilt(CSV.map(encoded)), CONTENT.map(b"text,label\n".__add__))
    fuzz_reviews(folder, data, contents, ["r.csv", "r.tsv"], written)


def fuzz_json(folder, data) -> None:
    def written(rows) -> str:
        return "".join(json.dumps({"text": t, "label": n}) + "\n" for t, n in rows)

    fuzz_reviews(folder, data, st.one_of(CONTENT, spoilt(JSON.map(encoded))), ["r.jsonl", "r.json"], written)


def readable(text: str) -> bool:
    return "\0" not in text and not any(unicodedata.category(c) == "Cs" for c in text)


def fuzz_glove(folder, data) -> None:
    path = folder / "v.txt"
    path.write_bytes(content := data.draw(st.one_of(CONTENT, spoilt(VECTORS.map(encoded)))) or b"a 1 2 3")
    try:
        words, vectors = read_file(path, DIM)
    except UserError as error:
        one_line(error, path)
        return
    assert vectors.shape == (len(words), DIM)
    assert np.isfinite(vectors).all()
    assert len(set(words)) == len(words) == content.count(b"\n") + (not content.endswith(b"\n"))
    lines = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, vectors, strict=True))
    path.write_bytes(lines.encode())
    again, same = read_file(path, DIM)
    assert again == words
    assert same.tobytes() == vectors.tobytes()


VOCABULARY = ["the", "film", "n't", "'", ".", "a", "…", "...", "--", "i̇", "10/10"]
READERS = {name: Tokenizer(name, VOCABULARY) for name in RULES if name != "torchtext"}


def fuzz_tokenizers(folder, data) -> None:
    text = data.draw(st.one_of(TEXT, CONTENT.map(lambda found: found.decode("utf-8", "surrogateescape"))))
    for name, tokenizer in READERS.items():
        (ids,), words = tokenizer.encode([text]), tokenizer.words(text)
        assert ids == [word.id for word in words], name
        assert all(UNK <= number < FIRST_WORD + len(VOCABULARY) and number != 2 for number in ids)
        ends = [0, *(word.end for word in words)]
        assert all(0 <= word.start < word.end <= len(text) for word in words), name
        if name != "ptb":  # where ... may stand for one character, and words for what they were made of
            assert all(end <= word.start for end, word in zip(ends, words, strict=False)), name
        rejoined = " ".join(word.text for word in words)
        assert [word.text for word in tokenizer.words(rejoined)] == [word.text for word in words], name


SIDE = st.one_of(st.text(st.sampled_from("aI'm .!é\xa0\u200b\x85"), max_size=9).map("w".__add__), TEXT)
PAIRS = st.lists(st.tuples(SIDE, SIDE).map("\t".join), min_size=4, max_size=20).map("\n".join)
SENTENCES = yaml.safe_load((conf_dir() / "data" / "translation.yaml").read_text())["data"] | {"min_frequency": 1}
SENTENCES |= {"validation_share": 0.3, "test_share": 0.3}


def fuzz_pairs(folder, data) -> None:
    path = folder / "p.tsv"
    path.write_bytes(data.draw(st.one_of(CONTENT, spoilt(PAIRS.map(encoded)))))
    wanted = {"path": str(path), "encoding_errors": data.draw(st.sampled_from(["strict", "replace"]))}
    try:
        corpus = prepare(Translation(**SENTENCES | wanted))
    except UserError as error:
        one_line(error, path)
        return
    sources = [set(split.texts) for split in corpus.splits.values()]
    assert sum(map(len, sources)) == len(set.union(*sources)), "a source in two splits"
    for name, split in corpus.splits.items():
        assert len(split) == len(split.texts) == len(split.references) == len(split.rows) > 0
        batch = split.batch(torch.arange(len(split)))
        for row, (text, right) in enumerate(zip(split.texts, split.references, strict=True)):
            sides = (
                (batch.source_BS, corpus.source_vocabulary, text),
                (batch.target_BT, corpus.target_vocabulary, right[0]),
            )
            for ids, vocabulary, said in sides:
                words = vocabulary.decode(ids[row].tolist())
                assert said.split(), "an empty side"
                assert len(words) == len(said.split())
                assert name != "train" or all(w in (s, MARKERS[3]) for w, s in zip(words, said.split(), strict=True))


FUZZED: dict[str, Callable] = {
    "csv": fuzz_csv,
    "json": fuzz_json,
    "glove": fuzz_glove,
    "tokenizers": fuzz_tokenizers,
    "pairs": fuzz_pairs,
}
CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.parametrize("reader", FUZZED)
def test_a_reader_gives_a_result_or_one_line(reader, tmp_path):
    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=CHECKS)
    @given(st.data())
    def fuzz(data):
        FUZZED[reader](tmp_path, data)

    fuzz()


@pytest.mark.slow
@pytest.mark.parametrize("reader", FUZZED)
def test_a_reader_gives_a_result_or_one_line_for_ten_minutes(reader, tmp_path):
    """Rounds of examples, each from a new seed, until the time is over; hypothesis prints what fails."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:

        @seed(random.SystemRandom().getrandbits(64))
        @settings(max_examples=500, deadline=None, database=None, suppress_health_check=CHECKS, print_blob=True)
        @given(st.data())
        def fuzz(data):
            FUZZED[reader](tmp_path, data)

        fuzz()
