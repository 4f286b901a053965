"""Sentences and their translations: read, split into words, and cut so that no held-out sentence is trained on."""

import hashlib
import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imdbattn.data.pair_sources import SPLITS, PairSource, TextPairs, Texts, choice, whole
from imdbattn.errors import UserError
from imdbattn.files import sha256_of

log = logging.getLogger(__name__)

SETTINGS = (  # of conf/data/translation.yaml, those that are read here
    "path",
    "hub",
    "hub_config",
    "languages",
    "lower",
    "min_frequency",
    "max_tokens",
    "limit",
    "encoding_errors",
    "validation_share",
    "test_share",
)
PACKAGED = Path(__file__).with_name("pairs.tsv")
PACKAGED_LANGUAGES = ["en", "fr"]  # its columns
COLUMN = "translation"  # of a dataset at the hub: {"en": "...", "fr": "..."}
HUB_SPLITS = dict.fromkeys(("validation", "valid", "val", "dev"), "validation") | {"train": "train", "test": "test"}
SIGNS = re.compile('([.,!?;:…"«»“”„‹›])')  # each is a symbol of its own; apostrophes and hyphens belong to words


class Pair(NamedTuple):
    """One row: where it stood (counted from 0), and both sides."""

    row: int
    source: str
    target: str


def normalised(text: str, lower: bool) -> str:
    """Words and signs, joined by single spaces: "C’est à toi !" is "c'est à toi !".

    Accents that stand as characters of their own are joined to their letter, and ’ is ': else one word would be two.
    """
    text = unicodedata.normalize("NFC", text.lower() if lower else text)
    return " ".join(SIGNS.sub(r" \1 ", text.replace("’", "'")).split())  # split() knows no-break spaces, too


# --- sources ---------------------------------------------------------------------------------------------------------


def checked(cfg: Mapping[str, Any]) -> None:
    """Raises UserError naming the key of the `data` settings that is wrong, or missing."""
    if lacking := [key for key in SETTINGS if key not in cfg]:
        raise UserError(f"data.source={cfg['source']} needs data.{lacking[0]}: data=translation brings it")
    for key in ("path", "hub", "hub_config"):
        if not isinstance(cfg[key], str | None):
            raise UserError(f"data.{key}={cfg[key]} must be text, or null")
    languages = cfg["languages"]
    if not isinstance(languages, list) or len(languages) != 2 or not all(isinstance(name, str) for name in languages):
        raise UserError(f"data.languages={languages} must be the keys of source and target, such as [en,fr]")
    choice(cfg, "lower", True, False)
    choice(cfg, "encoding_errors", "strict", "replace")
    whole(cfg, "min_frequency", 1)
    for key in ("max_tokens", "limit"):
        if cfg[key] is not None:
            whole(cfg, key, 1)
    shares = [cfg["validation_share"], cfg["test_share"]]
    if any(type(share) not in (int, float) or not 0 < share < 1 for share in shares) or sum(shares) >= 1:
        raise UserError(
            f"data.validation_share={shares[0]} and test_share={shares[1]} must lie above 0, together below 1"
        )


def find_source(cfg: Mapping[str, Any]) -> PairSource:
    """The file or dataset that the settings name; cfg is conf/data/translation.yaml. Raises UserError."""
    checked(cfg)
    source, given = cfg["source"], {key: cfg[key] for key in ("path", "hub") if cfg[key]}
    if len(given) == 2:
        raise UserError(f"data.path={given['path']} and data.hub={given['hub']} are both given: leave one at null")
    kind = next(iter(given), "packaged") if source == "auto" else source
    if other := [key for key in given if key != kind]:
        raise UserError(f"data.{other[0]} is given, so data.source={source} has no meaning: leave it at auto")
    if kind == "hub":
        if not given:
            raise UserError("data.source=hub needs data.hub=<owner/name of a dataset with a column translation>")
        return hub_source(cfg)
    if kind == "packaged":
        return packaged_source(cfg)
    if not given:
        raise UserError("data.source=path needs data.path=<a text file with source TAB target a line>")
    return file_source("path", Path(os.path.expanduser(cfg["path"])), cfg)


def packaged_source(cfg: Mapping[str, Any]) -> PairSource:
    """The pairs of this package, in the direction that data.languages says."""
    languages = cfg["languages"]
    if sorted(languages) != sorted(PACKAGED_LANGUAGES):
        known = ",".join(PACKAGED_LANGUAGES)
        raise UserError(
            f"data.languages={languages}, but the packaged pairs have [{known}]: choose these, or a data.path"
        )
    return file_source("packaged", PACKAGED, cfg, turned=languages != PACKAGED_LANGUAGES)


def file_source(kind: str, path: Path, cfg: Mapping[str, Any], turned: bool = False) -> PairSource:
    """A file of tab-separated pairs, to be cut; turned: its first column is the target."""
    if not os.path.isfile(path):  # False as well for a name that is too long
        found = "is not a regular file" if os.path.exists(path) else "does not exist"
        found = "is a folder" if os.path.isdir(path) else found
        raise UserError(f"data.path={path} {found}: give a text file with source TAB target a line")
    try:
        checksum = sha256_of(path)
    except OSError as error:
        raise UserError(f"data.path={path} cannot be read ({error.strerror}): make it readable") from error
    name = str(path.resolve()) if kind == "path" else f"Packaged pairs {'-'.join(cfg['languages'])}"

    def load(uncut: bool) -> Texts:
        pairs = read_file(path, cfg["encoding_errors"])
        if turned:
            pairs = (Pair(row, target, source) for row, source, target in pairs)
        return cut({"": pairs}, name, cfg, uncut)

    return PairSource(kind, name, repr((checksum, turned, cfg["encoding_errors"], cfg["limit"])), load)


def hub_source(cfg: Mapping[str, Any]) -> PairSource:
    """A dataset at the Hugging Face hub, by the library `datasets`."""
    import datasets

    hub, config, keys = cfg["hub"], cfg["hub_config"], cfg["languages"]
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", hub):  # a path of this machine is read as such by the library
        raise UserError(f"data.hub={hub} must be owner/name of a dataset at the hub; data.path reads a file")
    datasets.disable_progress_bars()
    try:
        found = datasets.load_dataset(hub, config)
    except Exception as error:  # the hub's client has a dozen kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"data.hub={hub}: it cannot be had ({reason}); data.path=<a file of pairs> and data.source=packaged "
            "need no hub"
        ) from error
    parts = {HUB_SPLITS[name]: part for name, part in found.items() if name in HUB_SPLITS}
    if not parts:
        raise UserError(f"data.hub={hub} has the splits {', '.join(found)}: one named train is wanted")
    for part in parts.values():
        if COLUMN not in part.column_names:
            raise UserError(
                f"data.hub={hub} has no column '{COLUMN}', but {', '.join(part.column_names)}: take another"
            )

    def read(part: Any) -> Iterator[Pair]:
        rows = range(min(len(part), cfg["limit"] or len(part)))
        for row, sides in enumerate(part.select(rows)[COLUMN][:]):
            if not isinstance(sides, Mapping):
                raise UserError(f"data.hub={hub}: '{COLUMN}' holds no pairs by language, but '{str(sides)[:60]}'")
            if lacking := [key for key in keys if key not in sides]:
                raise UserError(
                    f"data.hub={hub} has no language '{lacking[0]}', but {', '.join(sides)}: set data.languages"
                )
            yield Pair(row, *(str(sides[key] or "") for key in keys))

    def load(uncut: bool) -> Texts:
        tables = {name: read(part) for name, part in parts.items()}
        if list(tables) == ["train"]:
            tables = {"": tables["train"]}
        return cut(tables, hub, cfg, uncut)

    key = repr((hub, config, keys, cfg["limit"], [part._fingerprint for part in parts.values()]))
    return PairSource("hub", f"{hub} (hub)", key, load)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_file(path: Path, encoding_errors: str) -> Iterator[Pair]:
    """The pairs of a file; blank lines count as rows and are passed over.

    Raises UserError with the row where it is no pair, or no text.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"data.path={path} cannot be read ({error.strerror}): make it readable") from error
    if not content.strip():
        raise UserError(f"{path} is empty: it should hold source TAB target a line")
    if content.startswith((b"PK\3\4", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        raise UserError(f"{path} is compressed: unpack it first")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is UTF-16: save it as UTF-8")
    way_out = "save it as UTF-8; data.encoding_errors=replace goes on"
    try:
        text = content.decode("utf-8", encoding_errors).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        row = content.count(b"\n", 0, error.start)
        raise UserError(f"{path} is not UTF-8 at byte {error.start}, in {counted(row)}: {way_out}") from error
    if encoding_errors == "replace":
        text = text.replace("\0", "\ufffd")
    if "\n" not in text:  # of an old Mac
        text = text.replace("\r", "\n")
    for row, line in enumerate(text.split("\n")):  # splitlines also cuts at what may stand inside a text
        if "\0" in line:
            raise UserError(f"{path}: {counted(row)} has a null byte: {way_out}")
        if not line.strip():
            continue
        source, tab, rest = line.partition("\t")
        if not tab:
            found = " ".join(line.split())[:60]
            raise UserError(f"{path}: {counted(row)} has no tab, but '{found}': write source TAB target")
        yield Pair(row, source, rest.partition("\t")[0])


def counted(row: int) -> str:
    return f"row {row} (counted from 0)"


def clean(pairs: Iterable[Pair], name: str, cfg: Mapping[str, Any]) -> tuple[list[Pair], int]:
    """Normalised pairs, each once, and how many were left out as too long. Raises UserError for an empty side."""
    longest = cfg["max_tokens"]
    found: dict[tuple[str, str], Pair] = {}
    dropped = 0
    for row, *sides in islice(pairs, cfg["limit"]):
        source, target = (normalised(side, cfg["lower"]) for side in sides)
        if not source or not target:
            side = "target" if source else "source"
            raise UserError(f"{name}: {counted(row)} has an empty {side}: fill it, or take the row away")
        # n words have n - 1 spaces between them
        if longest is not None and max(source.count(" "), target.count(" ")) >= longest:
            dropped += 1
        else:
            found.setdefault((source, target), Pair(row, source, target))
    if dropped:
        log.info("%s: %d pairs left out, a side is longer than data.max_tokens=%d", name, dropped, longest)
    return list(found.values()), dropped


# --- cutting ---------------------------------------------------------------------------------------------------------


def cut(tables: Mapping[str, Iterable[Pair]], name: str, cfg: Mapping[str, Any], uncut: bool) -> Texts:
    """The splits: those that are missing are cut from training by source sentence, and what is held out leaves it.

    tables: the pairs of each split; "" is a file without splits.
    uncut: the splits stay as they are, and a file without is a test split as a whole.
    Raises UserError where a split has no pair.
    """
    parts, dropped = {}, 0
    for split, pairs in tables.items():
        parts[split], too_long = clean(pairs, name if len(tables) == 1 else f"{name}, {split}", cfg)
        dropped += too_long
    test_set = f"{name}: {'all' if '' in parts else 'test'}"
    if uncut:
        parts = {split or "test": pairs for split, pairs in parts.items()}
    else:
        rest = parts.pop("" if "" in parts else "train", None)
        if rest is None:
            raise UserError(f"{name} has no training pairs; it holds {', '.join(parts)}")
        if "test" not in parts:
            test_set = f"{name}: {cfg['test_share']:.0%} of its source sentences"
        shares = {split: cfg[f"{split}_share"] for split in ("test", "validation") if split not in parts}
        parts |= {split: [] for split in ("train", *shares)}
        given = {pair.source for split in parts for pair in parts[split]}
        for pair in rest:
            if pair.source in given:  # stands in a held-out split that came with the data
                dropped += 1
            else:
                parts[place(pair.source, shares)].append(pair)
    splits = {split: (each if split == "train" else by_source)(parts[split]) for split in SPLITS if split in parts}
    for split, kept in splits.items():
        if not kept.sources:
            raise UserError(
                f"{name}: no pair is left for {split}, of those with up to data.max_tokens={cfg['max_tokens']} words: "
                "give more pairs, or change data.max_tokens, limit, validation_share or test_share"
            )
    return Texts(splits, test_set, dropped)


def place(source: str, shares: Mapping[str, float]) -> str:
    """The split of a source sentence: by its own hash, so it stays there whatever other pairs there are."""
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).digest()
    left = int.from_bytes(digest[:8]) / 2**64
    for split, share in shares.items():
        if left < share:
            return split
        left -= share
    return "train"


def each(pairs: list[Pair]) -> TextPairs:
    """Every pair an item, as training takes them."""
    rows = np.array([pair.row for pair in pairs], dtype=np.int64)
    return TextPairs([pair.source for pair in pairs], [[pair.target] for pair in pairs], rows)


def by_source(pairs: list[Pair]) -> TextPairs:
    """Every source an item, with all its targets, at the row of its first pair."""
    targets: dict[str, list[str]] = {}
    rows = []
    for row, source, target in pairs:
        if source not in targets:
            rows.append(row)
        targets.setdefault(source, []).append(target)
    return TextPairs(list(targets), list(targets.values()), np.array(rows, dtype=np.int64))
