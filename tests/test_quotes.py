"""CSV and TSV files are read as their writer meant them, or refused: no row is lost, added or changed."""

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from imdbattn.data.text_files import open_lines, read_columns
from imdbattn.errors import UserError

COLUMNS = {"data.text_column": "text", "data.label_column": "label"}


def python(suffix: str, **dialect):
    """A function that writes rows as Python's csv module does."""

    def write(rows: list[list[str]]) -> str:
        csv.writer(file := io.StringIO(), delimiter="," if suffix == ".csv" else "\t", **dialect).writerows(rows)
        return file.getvalue()

    return write


def pandas(suffix: str, **options):
    """A function that writes rows as pandas does."""

    def write(rows: list[list[str]]) -> str:
        return pd.DataFrame(rows[1:], columns=rows[0]).to_csv(
            sep="," if suffix == ".csv" else "\t", index=False, **options
        )

    return write


def excel_text(rows: list[list[str]]) -> str:
    """As Excel's "Text (tab delimited)": values with tabs, commas, quotes or line breaks are in quotes."""
    quoted = [
        ['"' + value.replace('"', '""') + '"' if set(value) & set('\t,"\n\r') else value for value in row] for row in rows
    ]
    return "".join("\t".join(row) + "\r\n" for row in quoted)


def flat(value: str) -> str:
    return " ".join(value.replace("\t", " ").splitlines())


def google_sheets(rows: list[list[str]]) -> str:
    """As Google Sheets: tabs and line breaks become spaces, and there is no quoting."""
    return "\n".join("\t".join(map(flat, row)) for row in rows)


def joined(rows: list[list[str]]) -> str:
    """Without any quoting, with the commas of texts removed."""
    return "".join(",".join(flat(value).replace(",", "") for value in row) + "\n" for row in rows)


ALL, WORDS, NONE = csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_NONE
ESCAPED = {"doublequote": False, "escapechar": "\\"}
WRITERS = {
    **{f"python{suffix}": (suffix, python(suffix)) for suffix in (".csv", ".tsv")},
    "python, \\n": (".csv", python(".csv", lineterminator="\n")),
    "python, all": (".csv", python(".csv", quoting=ALL)),
    "python, words": (".tsv", python(".tsv", quoting=WORDS)),
    "python, minimal, escaped": (".csv", python(".csv", **ESCAPED)),
    "python, all, escaped": (".tsv", python(".tsv", quoting=ALL, **ESCAPED)),
    "python, words, escaped": (".csv", python(".csv", quoting=WORDS, **ESCAPED)),
    "python, none, escaped": (".csv", python(".csv", quoting=NONE, escapechar="\\")),
    "pandas.csv": (".csv", pandas(".csv")),
    "pandas.tsv": (".tsv", pandas(".tsv")),
    "pandas, all": (".tsv", pandas(".tsv", quoting=ALL)),
    "pandas, words, escaped": (".tsv", pandas(".tsv", quoting=WORDS, **ESCAPED)),
    "excel, text": (".tsv", excel_text),
    "google sheets": (".tsv", google_sheets),
    "joined": (".csv", joined),
}
PARTS = st.sampled_from(['"', '"', "\t", "\n", "\r\n", ",", " ", "a", "b", "fiancée", "e\u0301", "'", ";", "\\"])
TEXTS = st.lists(PARTS, min_size=1, max_size=8).map("".join)
TABLES = st.lists(st.tuples(TEXTS, st.sampled_from(["neg", "pos"])), min_size=1, max_size=8)


def without_quotes(value: str) -> set[str]:
    """A value that is written without quoting, and what it is to a reader who takes its first and last quote for one."""
    return {value, value[1:-1].replace('""', '"')} if len(value) > 1 and value[0] == value[-1] == '"' else {value}


@pytest.mark.parametrize("writer", WRITERS)
@given(rows=TABLES, order=st.permutations(["text", "label", "id"]), data=st.data())
@hypothesis(max_examples=300, deadline=None)
def test_a_table_has_the_rows_that_were_written_or_is_refused(tmp_path_factory, writer, rows, order, data):
    suffix, write = WRITERS[writer]
    columns = data.draw(st.sampled_from([order, order[:2]])) if "text" in order[:2] and "label" in order[:2] else order
    table = [{"text": text, "label": label, "id": f"{n}_{n % 3}"} for n, (text, label) in enumerate(rows)]
    file = tmp_path_factory.getbasetemp() / f"r{suffix}"
    content = write([columns, *([row[column] for column in columns] for row in table)])
    file.write_bytes(content.encode())
    try:
        texts, labels = read_columns(file, COLUMNS)
    except UserError:
        assert list_or_none(file) is None
        return
    assert labels == [label for _, label in rows]
    assert list_or_none(file) == texts
    for found, (text, _) in zip(texts, rows, strict=True):
        if write in (google_sheets, joined):
            assert found in without_quotes(flat(text) if write is google_sheets else flat(text).replace(",", ""))
        elif "escaped" in writer and "\\" in text:
            assert found in (text, text.replace("\\", "\\\\"))
        else:
            assert found == text


def list_or_none(file: Path) -> list[str] | None:
    """What predict reads."""
    try:
        return list(open_lines(str(file)).lines)
    except UserError:
        return None
