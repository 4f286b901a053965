"""CSV and TSV files are read as their writer meant them, or refused: no row is changed."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from imdbattn.data.user_files.tables import open_lines, read_columns
from imdbattn.errors import UserError

COLUMNS = {"data.text_column": "text", "data.label_column": "label"}


class Writer(NamedTuple):
    """A program that writes tables."""

    suffix: str
    write: Callable[[Sequence[Sequence[str]]], str]
    # what a text that it has written may be read as
    reads: Callable[[str], set[str]] = lambda text: {text}


def python(suffix: str, **dialect) -> Writer:
    """Python's csv module, which pandas uses, too."""

    def write(rows: list[list[str]]) -> str:
        csv.writer(
            file := io.StringIO(), delimiter="," if suffix == ".csv" else "\t", **dialect
        ).writerows(rows)
        return file.getvalue()

    if "escapechar" in dialect:  # it does not escape the backslashes of a text
        return Writer(suffix, write, lambda text: {text, text.replace("\\", "\\\\")})
    return Writer(suffix, write)


def excel_text(rows: list[list[str]]) -> str:
    """As Excel's "Text (tab delimited)", which quotes values with tabs, commas or breaks."""
    quoted = [
        [f'"{v.replace(chr(34), 2 * chr(34))}"' if set(v) & set('\t,"\n\r') else v for v in row]
        for row in rows
    ]
    return "".join("\t".join(row) + "\r\n" for row in quoted)


def flat(value: str) -> str:
    return " ".join(value.replace("\t", " ").splitlines())


def google_sheets(rows: list[list[str]]) -> str:
    """As Google Sheets: tabs and line breaks become spaces, and there is no quoting."""
    return "\n".join("\t".join(map(flat, row)) for row in rows)


def without_commas(value: str) -> str:
    return flat(value).replace(",", "")


def joined(rows: list[list[str]]) -> str:
    """Without any quoting, with the commas of texts removed."""
    return "".join(",".join(map(without_commas, row)) + "\n" for row in rows)


def without_quotes(value: str) -> set[str]:
    """A value written without quoting, and how it reads if its own quotes enclose it."""
    inner = value[1:-1]
    within = {inner, inner.replace('""', '"'), inner.replace('\\"', '"')}
    return {value} | (within if len(value) > 1 and value[0] == value[-1] == '"' else set())


ALL = csv.QUOTE_ALL
ESCAPED = {"doublequote": False, "escapechar": "\\"}
WRITERS = {
    "python.csv": python(".csv"),
    "python.tsv": python(".tsv"),
    "python, all": python(".csv", quoting=ALL),
    "python, minimal, escaped": python(".csv", **ESCAPED),
    "python, all, escaped": python(".tsv", quoting=ALL, **ESCAPED),
    "excel, text": Writer(".tsv", excel_text),
    "google sheets": Writer(".tsv", google_sheets, lambda text: without_quotes(flat(text))),
    "joined": Writer(".csv", joined, lambda text: without_quotes(without_commas(text))),
}
PARTS = st.sampled_from(
    ['"', '"', "\t", "\n", "\r\n", ",", " ", "a", "b", "fiancée", "e\u0301", "'", ";", "\\"]
)
TEXTS = st.lists(PARTS, min_size=1, max_size=8).map("".join)
TABLES = st.lists(st.tuples(TEXTS, st.sampled_from(["neg", "pos"])), min_size=1, max_size=8)


@pytest.mark.parametrize("writer", WRITERS)
@given(rows=TABLES, order=st.permutations(["text", "label", "id"]), data=st.data())
@hypothesis(max_examples=20, deadline=None)
def test_a_table_has_the_rows_that_were_written_or_is_refused(
    tmp_path_factory, writer, rows, order, data
):
    program = WRITERS[writer]
    columns = order
    if order[2] == "id" and data.draw(st.booleans()):
        columns = order[:2]
    table = [
        {"text": text, "label": label, "id": f"{n}_{n % 3}"} for n, (text, label) in enumerate(rows)
    ]
    file = tmp_path_factory.getbasetemp() / f"r{program.suffix}"
    content = program.write([columns, *([row[column] for column in columns] for row in table)])
    file.write_bytes(content.encode())
    try:
        texts, labels = read_columns(file, COLUMNS)
    except UserError:
        assert list_or_none(file) is None
        return
    assert labels == [label for _, label in rows]
    assert list_or_none(file) == texts
    for found, (text, _) in zip(texts, rows, strict=True):
        assert found in program.reads(text)


def list_or_none(file: Path) -> list[str] | None:
    """What predict reads."""
    try:
        return list(open_lines(file).texts)
    except UserError:
        return None


REVIEWS = [
    (f'A film, number {n}.\n\nIt was "fine", or so.', "pos" if n % 2 else "neg") for n in range(40)
]


@pytest.mark.parametrize("writer", sorted({*WRITERS} - {"google sheets", "joined"}))
def test_what_programs_write_is_read(tmp_path, writer):
    program = WRITERS[writer]
    file = tmp_path / f"r{program.suffix}"
    file.write_bytes(program.write([("text", "label"), *REVIEWS]).encode())
    found = read_columns(file, COLUMNS)
    assert list(zip(*found, strict=True)) == REVIEWS


def lines_of(delimiter: str, *rows: tuple[str, str]) -> str:
    """40 rows without quoting, some of which are replaced by `rows`, every tenth from line 7 on."""
    table = [(f"film number {n}", "pos" if n % 2 else "neg") for n in range(40)]
    for n, row in enumerate(rows):
        table[5 + 10 * n] = row
    return "".join(delimiter.join(row) + "\n" for row in [("text", "label"), *table])


STRAY = [('"A film that', "pos"), ('that ends"', "neg")]
SINGLE = ('He said "no" to it', "neg")
REFUSED = {  # the name of a file, its content, and the first line that is wrong
    "rows between quotes": ("r.tsv", lines_of("\t", *STRAY), "line 7: "),
    "in a csv": ("r.csv", lines_of(",", *STRAY), "line 7: "),
    "not closed": (
        "r.csv",
        'text,label\nfine,pos\n"bad,neg\nso,so,pos\n"good, too",pos\n',
        "lines 3 to 5: ",
    ),
    "quotes of two kinds": ("r.tsv", lines_of("\t", ('"so"', "pos"), SINGLE), "line 17: "),
    "escaped and doubled": ("r.csv", 'text,label\n"a, ""b""",pos\n"a \\"b\\"",neg\n', "line 3: "),
    "backslashes doubled or not": ("r.csv", 'text,label\n"\\" a\\\\b c\\d",neg\n', "line 2: "),
    "UTF-16 without a mark": ("r.csv", "text,label\na,b\n".encode("utf-16-le"), "line 1: "),
    "Latin-1": ("r.csv", "text,label\nx,b\nfine,é\n".encode("latin1"), "line 3: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_can_be_read_in_two_ways_or_in_none_is_refused_with_its_line(tmp_path, case):
    name, content, message = REFUSED[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for read in (
        lambda: read_columns(tmp_path / name, COLUMNS),
        lambda: open_lines(tmp_path / name),
    ):
        with pytest.raises(UserError, match=message):
            read()


@pytest.mark.parametrize(
    "row", [SINGLE, STRAY[0], ('"Bad" film', "neg"), ('the 12" record', "pos"), ('"', "neg")]
)
def test_quotes_are_characters_where_no_value_is_enclosed(tmp_path, row):
    (tmp_path / "r.tsv").write_text(lines_of("\t", row))
    assert read_columns(tmp_path / "r.tsv", COLUMNS)[0][5] == row[0]


def test_kaggles_labeled_train_data_is_read(tmp_path):
    """25,000 reviews, in which some texts have tabs, backslashes, and quotes at their ends."""
    texts = ["a film", 'a "good" film', "a\ttab", "7\\10", '"', 'so "bad"', "C:\\", "two\nlines"]
    rows = [
        (f"{n}_{n % 10}", str(n % 2), f"{texts[n % 7]} {n}" if n % 3 else texts[n % 6])
        for n in range(25_000)
    ]
    lines = ["id\tsentiment\treview"]
    for name, label, text in rows:
        quoted = text.replace('"', '\\"')
        lines.append(f'"{name}"\t{label}\t"{quoted}"')
    (tmp_path / "labeledTrainData.tsv").write_text("\n".join(lines) + "\n")
    found = read_columns(
        tmp_path / "labeledTrainData.tsv", {"": "id", "a": "sentiment", "b": "review"}
    )
    assert list(zip(*found, strict=True)) == rows
    assert open_lines(tmp_path / "labeledTrainData.tsv", "review").total == 25_000
