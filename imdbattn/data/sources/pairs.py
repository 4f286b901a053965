"""The sources of pairs: a file, aligned files, the hub, a callable, or generated strings."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from imdbattn.data.labels import counted
from imdbattn.data.sources.hub import load_hub
from imdbattn.data.sources.reverse import reverse_source
from imdbattn.data.split_names import SPLIT_NAMES, by_split, split_named
from imdbattn.data.splits import Source, Split, Texts
from imdbattn.data.symbols import symbols_of, tokenizers_of
from imdbattn.data.user_files.tables import COMPRESSED, read_lines, read_text, visible_in
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.io.files import sha256_of, with_home
from imdbattn.settings.pair_settings import TranslationSettings

log = logging.getLogger(__name__)

Pair = tuple[str, str]  # source and target, both blank in a blank row
Sides = tuple[Path, Path]  # the files of sources and of targets
PACKAGED = Path(__file__).parents[1] / "pairs_en-fr.tsv"  # named by its columns


def find_pair_source(settings: Any) -> Source:
    """Returns the source that the `data` settings name."""
    if not isinstance(settings.source, str):
        return custom_pairs(settings)
    if settings.source == "reverse":
        return reverse_source(settings)
    if settings.hub:
        return hub_pairs(settings)
    if settings.path:
        path = with_home(settings.path)
        with wrapping_errors(f"data.path={settings.path}"):
            name = str(path.resolve(strict=True))
        if path.is_dir():
            return aligned_pairs(path, name, settings)
        return pairs_of_file("path", name, path, settings)
    columns = sorted(settings.languages)
    file = PACKAGED.with_name(f"pairs_{'-'.join(columns)}.tsv")
    name = f"Packaged pairs {'-'.join(settings.languages)}, of few words and patterns"
    return pairs_of_file("packaged", name, file, settings, swapped=settings.languages != columns)


def custom_pairs(settings: TranslationSettings) -> Source:
    """Returns the pairs of a custom callable."""
    from imdbattn.data.sources.custom import content_of, custom_items, source_name

    items = custom_items(settings.source, (str,))
    name = source_name(settings.source)
    identity = repr((name, content_of(items), settings.limit))
    return Source("custom", name, identity, lambda: clean(items, name, settings))


def hub_pairs(settings: TranslationSettings) -> Source:
    """Returns the pairs of a data set on the Hugging Face hub with a column `translation`."""
    hub = str(settings.hub)
    dataset = load_hub(f"data.hub={hub}", hub, name=settings.hub_config)
    tables = by_split(dataset, hub, "use another data set")

    def read(table: Any) -> Iterator[Pair]:
        for sides in table["translation"]:  # {"en": "...", "fr": "..."}
            source, target = (str(sides[language] or "") for language in settings.languages)
            yield source, target

    def load() -> Texts:
        return clean({split: read(table) for split, table in tables.items()}, hub, settings)

    fingerprints = [table._fingerprint for table in tables.values()]
    identity = repr((hub, settings.hub_config, settings.languages, settings.limit, fingerprints))
    return Source("hub", hub, identity, load)


def pairs_of_file(
    kind: str, name: str, file: Path, settings: TranslationSettings, swapped: bool = False
) -> Source:
    """Returns the pairs of a file. swapped: whether the target is its first column."""
    identity = repr((sha256_of(file), swapped, settings.limit))
    return Source(
        kind, name, identity, lambda: clean({"": read_pairs(file, swapped)}, name, settings)
    )


def aligned_pairs(folder: Path, name: str, settings: TranslationSettings) -> Source:
    """Returns two aligned files for each split in a folder, such as train.en and train.fr."""
    files = aligned_files(folder, settings.languages)
    sums = {}
    for split, sides in files.items():
        sums[split] = [(file.name, sha256_of(file)) for file in sides]

    def load() -> Texts:
        pairs = {split: read_aligned(sides) for split, sides in files.items()}
        return clean(pairs, name, settings)

    return Source("path", name, repr((sums, settings.limit)), load)


def clean(tables: Mapping[str, Iterable[Pair]], name: str, settings: TranslationSettings) -> Texts:
    """Returns the normalized pairs of each split, without blank rows, duplicates and overlong
    pairs. Raises UserError if only one side is blank.
    """
    tokenizers, splits, dropped = tokenizers_of(settings), {}, 0
    for split, pairs in tables.items():
        rows: dict[tuple[str, str], int] = {}  # the first row of each pair
        numbered = ((row, pair) for row, pair in enumerate(pairs) if any(map(str.strip, pair)))
        for row, sides in islice(numbered, settings.limit):
            source, target = map(symbols_of, sides, (settings.lower, settings.lower), tokenizers)
            if not source or not target:
                where, side = f"{name} {split}".strip(), "target" if source else "source"
                has = f"{counted(row)} has an empty {side}"
                raise UserError(f"{where}: {has}: fill it, or remove the row")
            # n words have n - 1 spaces between them
            spaces = max(source.count(" "), target.count(" "))
            if settings.max_tokens is not None and spaces >= settings.max_tokens:
                dropped += 1
            else:
                rows.setdefault((source, target), row)
        texts, targets = [source for source, _ in rows], [[target] for _, target in rows]
        splits[split] = Split(texts, targets, np.array(list(rows.values()), dtype=np.int64))
    if dropped:
        log.info("%s: omitted %d pairs longer than data.max_tokens", name, dropped)
    return Texts(splits, dropped=dropped)


# --- files ----------------------------------------------------------------------------------------


def read_pairs(path: Path, swapped: bool) -> Iterator[Pair]:
    """Yields the pairs of a file. swapped: whether the target is the first column.

    Raises UserError with the row if a line is neither a pair nor blank.
    """
    # splitlines also splits within a text
    for row, line in enumerate(read_text(path).split("\n")):
        columns = line.split("\t") if line.strip() else ["", ""]
        if len(columns) not in (2, 3):  # the third is an attribution
            has = f"{counted(row)} has {len(columns)} columns, not 2 or 3"
            raise UserError(f"{path}: {has}: write source TAB target")
        yield columns[swapped], columns[not swapped]


def aligned_files(folder: Path, languages: Sequence[str]) -> dict[str, Sides]:
    """Returns the files of each split in a folder, such as train.en and train.fr or train.en.gz.

    A single pair of files with any name is the split "". Raises UserError unless each file has one
    counterpart, and for a file whose name only begins with a split's name.
    """
    files = defaultdict[str, list[Path]](list)  # keys: names without .gz, .bz2, .xz
    for file in visible_in(folder):
        files[file.stem if file.suffix.lower() in COMPRESSED else file.name].append(file)
    names = [name for name in files if name.rpartition(".")[2] in languages]
    sides = {}
    for stem in dict.fromkeys(name.rpartition(".")[0] for name in names):
        both = [files.get(f"{stem}.{language}", []) for language in languages]
        if list(map(len, both)) != [1, 1]:
            wanted = " and ".join(f"{stem}.{language}" for language in languages)
            raise UserError(f"{folder} must have both {wanted}, each once")
        sides[stem] = both[0][0], both[1][0]
        if not split_named(stem) and stem.casefold().startswith(tuple(SPLIT_NAMES)):
            raise UserError(
                f"{both[0][0]} is not named as a split: rename it, such as test.{languages[0]}"
            )
    if len(sides) == 1 and not split_named(*sides):
        return {"": sides.popitem()[1]}
    remedy = "keep one of each, and set data.languages to the ends of their names"
    return by_split(sides, folder, remedy)


def read_aligned(sides: Sides) -> Iterator[Pair]:
    """Yields the pairs of two files, line by line. Raises UserError if one has more lines than the
    other.
    """
    for row, (source, target) in enumerate(zip_longest(*map(read_lines, sides))):
        if source is None or target is None:
            longer, shorter = sides if target is None else reversed(sides)
            raise UserError(f"{longer} has more lines than {shorter}, which has {row}")
        yield source, target
