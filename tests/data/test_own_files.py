"""Folders, names of splits, labels and names in settings are read as they are meant, or refused."""

import json
import logging
import re
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import Phase, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from imdbattn.data.corpus import find_source
from imdbattn.data.user_files.tables import open_lines
from imdbattn.errors import UserError
from imdbattn.launch.hydra_config import quote
from tests.world import write_files

NAMES = {"train": ["train"], "validation": ["validation", "valid", "val", "dev"], "test": ["test"]}
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # a folder is small already
TABLE = "text,label\n" + "".join(f"film {n},{'neg' if n % 2 else 'pos'}\n" for n in range(40))
WRITERS = {
    ".csv": lambda table, file: table.to_csv(file, index=False),
    ".TSV": lambda table, file: table.to_csv(file, index=False, sep="\t"),
    ".jsonl": lambda table, file: table.to_json(file, orient="records", lines=True),
    ".json": lambda table, file: table.to_json(file, orient="records", indent=1),
    ".parquet": lambda table, file: table.to_parquet(file),
}


def at(data_settings, folder: Path):
    """The settings with data.path=folder, composed once."""
    return data_settings().model_copy(update={"path": str(folder)})


def found_in(cfg) -> dict[str, list[tuple[str, str]]]:
    """Text and label of each row of each split."""
    texts = find_source(cfg).load()
    return {
        name: [
            (text, texts.label_names[label])
            for text, label in zip(split.texts, split.labels, strict=True)
        ]
        for name, split in texts.splits.items()
    }


# what is no data in a folder of reviews
BESIDE = ("README.md", "imdb.vocab", "unsup/none/1.txt", "unsupervised-00000-of-00001.csv")
BESIDE += ("notes/1.txt", "images/2020/1.png")


def any_case(data, word: str) -> str:
    return "".join(letter.upper() if data.draw(st.booleans()) else letter for letter in word)


def write_tables(data, folder: Path, name: str, rows: list[tuple[str, str]]) -> None:
    """A split as a table, or in parts as on the hub."""
    suffix, count = data.draw(st.sampled_from([*WRITERS])), data.draw(st.integers(1, 3))
    hashed = data.draw(st.sampled_from(["", "-0123456789abcdef"]))
    for part in range(count):
        some = rows[part * len(rows) // count : (part + 1) * len(rows) // count]
        file = f"{name}-{part:05}-of-{count:05}{hashed}{suffix}" if count > 1 else name + suffix
        WRITERS[suffix](pd.DataFrame(some, columns=["text", "label"]), folder / file)


def write_texts(folder: Path, name: str, rows: list[tuple[str, str]]) -> None:
    write_files(folder, {f"{name}/{label}/{n}_1.txt": text for n, (text, label) in enumerate(rows)})


@given(data=st.data())
@examples(max_examples=12, deadline=None, phases=PHASES)
def test_every_visible_row_is_read_once_in_its_split_or_the_folder_is_refused(
    data_settings, tmp_path_factory, data
):
    """The table below has folders that are refused."""
    folder = tmp_path_factory.mktemp("data")
    others = data.draw(st.sets(st.sampled_from(["validation", "test"])))
    expected = {}
    for split in ["train", *sorted(others)]:
        name = any_case(data, data.draw(st.sampled_from(NAMES[split])))
        labels = data.draw(st.lists(st.sampled_from(["fiancée", "Été"]), min_size=3, max_size=3))
        expected[split] = [(f"{split} é\t{n}", label) for n, label in enumerate(labels)]
        expected[split] += [(f"{split} last", "fiancée"), (f"{split} last", "Été")]
        if data.draw(st.booleans()):
            write_tables(data, folder, name, expected[split])
        else:
            write_texts(folder, name, expected[split])
            write_files(folder, {f"{name}/urls_pos.txt": "", f"{name}/Unsup/1.txt": "x"})
    hidden = data.draw(st.sets(st.sampled_from([".", "._", "__MACOSX/", ".ipynb_checkpoints/"])))
    shown = [file.relative_to(folder) for file in folder.rglob("*.*")]
    for prefix, file in zip(sorted(hidden), shown, strict=False):  # copies in the same folder
        write_files(
            folder, {str(file.parent / (prefix + file.name)): "\0hidden", ".DS_Store": "\0"}
        )
    write_files(folder, dict.fromkeys(BESIDE, "x"))
    found = found_in(at(data_settings, folder))
    assert found.keys() == expected.keys()
    assert all(sorted(found[split]) == sorted(rows) for split, rows in expected.items())


def test_hidden_files_are_skipped_and_counted(data_settings, tmp_path, caplog):
    texts = {f"train/{label}/{n}_1.txt": label for label in ("neg", "pos") for n in range(3)}
    hidden = ("train/.ipynb_checkpoints/0_1.txt", "train/neg/._0_1.txt", "train/neg/.x.swp.txt")
    hidden += ("__MACOSX/neg/0_1.txt",)
    # the folder itself may be hidden
    write_files(tmp_path / ".home" / "reviews", texts | dict.fromkeys(hidden, "\0"))
    folder = tmp_path / ".home" / "reviews"
    (folder / "train" / "more").symlink_to(folder / "train" / "neg")  # is read, too
    with caplog.at_level(logging.INFO):
        found = Counter(found_in(data_settings(f"data.path={folder}"))["train"])
        assert found == {("neg", "neg"): 3, ("pos", "pos"): 3, ("neg", "more"): 3}
        assert list(open_lines(folder / "train" / "neg").texts) == ["neg"] * 3
    counts = [re.search(r"skipped (\d+) hidden files", line) for line in caplog.messages]
    # of the folder, train, more, neg, and neg again
    assert [int(count[1]) for count in counts if count] == [1, 1, 2, 2, 2]


LAYOUT = {
    f"{split}/{label}/1_1.txt": split for split in ("Train", "tesT") for label in ("neg", "pos")
}
REFUSED = {  # what is unclear -> files, and what the message names
    "a folder among the texts": ({**LAYOUT, "Train/neg/2020/1.txt": "x"}, "2020"),
    "two tables of a split": ({"train.csv": TABLE, "TRAIN.csv": TABLE}, "TRAIN.csv, train.csv"),
    "a missing part": ({"train.csv": TABLE, "Test-00000-of-00002.csv": TABLE}, "Test-"),
    "a table with another name": ({"train.csv": TABLE, "eval.csv": TABLE}, "eval.csv"),
    "texts with another name": ({**LAYOUT, "eval/2020/1.txt": "x"}, "eval"),
    "texts without labels": ({"train.csv": TABLE, "test/1.txt": "x"}, "test"),
    "another format": ({"train.csv": TABLE, "Test.xlsx": "x"}, "Test.xlsx"),
    "labels in two cases": ({**LAYOUT, "Train/Neg/1.txt": "x"}, "'Neg' and 'neg'"),
    "an invisible character": ({"train.csv": TABLE + "a,neg\u200b\n"}, "'neg\\u200b'"),
    "two forms of an accent": ({"train.csv": TABLE + "a,é\nb,e\u0301\n"}, "'é'"),
    "one number as two labels": ({"train.csv": TABLE + "a,01\nb,1\n"}, "'01' and '1'"),
    "a text with another suffix": ({**LAYOUT, "Train/pos/2.text": "x"}, "2.text"),
    "a missing label": ({"train.csv": TABLE + "film,#N/A\n"}, "#N/A"),
    "two files in one": (
        {"train.csv": TABLE + TABLE},
        "row 40 (counted from 0) repeats the header",
    ),
    "as Excel writes it": ({"train.csv": TABLE.replace(",", ";")}, "it has 'text;label'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_in_which_something_is_unclear_is_refused(data_settings, tmp_path, case):
    files, message = REFUSED[case]
    with pytest.raises(UserError, match=re.escape(message)):
        find_source(at(data_settings, write_files(tmp_path, files))).load()


ROWS = [{"text": "a film", "label": "pos"}, {"text": "a bad film", "label": "neg"}]
# files whose row 2 has no text, as programs write it
WITHOUT_TEXT = {
    "null.jsonl": '{"text": null, "label": "pos"}',
    "absent.jsonl": '{"label": "pos"}',
    "nan.jsonl": '{"text": NaN, "label": "pos"}',
    "null.parquet": None,
    "empty.xlsx": None,
    "error.xlsx": "#N/A",
}


@pytest.mark.parametrize("name", WITHOUT_TEXT)
def test_a_missing_text_is_refused_and_never_read_as_a_word(data_settings, tmp_path, name):
    """Neither in training nor in prediction: nan and None are words with a label."""
    file, value = tmp_path / name, WITHOUT_TEXT[name]
    if file.suffix == ".jsonl":
        file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS) + value)
    else:
        rows = pd.DataFrame([*ROWS, {"text": value, "label": "pos"}])
        if file.suffix == ".xlsx":
            pytest.importorskip("openpyxl")
            rows.to_excel(file, index=False)
        else:
            rows.to_parquet(file)
    for read in (at(data_settings, file), None):
        with pytest.raises(UserError, match=r"row 2 \(counted from 0\) has no 'text'"):
            found_in(read) if read else open_lines(file)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["text", "label"], ["a", "pos"], ["text", "label"]], "row 1 (counted from 0) repeats"),
        ([["text", "label", "text"], ["a", "pos", "b"]], "2 columns 'text'"),
    ],
)
def test_an_excel_file_that_repeats_its_header_or_a_column_is_refused(
    data_settings, tmp_path, rows, message
):
    pytest.importorskip("openpyxl")
    pd.DataFrame(rows).to_excel(tmp_path / "reviews.xlsx", header=False, index=False)
    with pytest.raises(UserError, match=re.escape(message)):
        found_in(at(data_settings, tmp_path / "reviews.xlsx"))


# --- names in settings ----------------------------------------------------------------------------

WORD = st.text("aeEnuls01_:.+~- ", min_size=1, max_size=6).map(str.strip).filter(bool)


@given(column=WORD)
@example(column="0")
@example(column="1e3")
@example(column="情感")
@examples(max_examples=15, deadline=None, phases=PHASES)
def test_the_name_of_a_column_is_text_as_typed(column):
    for setting in ("data.text_column", "keep"):
        word = quote(f"{setting}={column}")
        assert column == "null" or OverridesParser.create().parse_override(word).value() == column


@pytest.mark.parametrize("names", ["FALSE,TRUE", "0,1", "null,none", "1.0,0.0"])
def test_labels_that_look_like_other_values_are_refused_unless_they_are_quoted(
    data_settings, names
):
    """Never read as other labels: true is not TRUE, and 1 is not 01."""
    quoted = ",".join(f"'{name}'" for name in names.split(","))
    given = data_settings("data.path=r.csv", f"data.label_names=[{quoted}]")
    assert given.label_names == names.split(",")
    with pytest.raises(UserError, match=r"data\.label_names.* is quoted, as in"):
        data_settings("data.path=r.csv", f"data.label_names=[{names}]")
