"""The sources of pairs: a file, aligned files, the hub, a callable, or generated strings."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from imdbattn.data.labels import counted
from imdbattn.data.sources.hub import load_hub
from imdbattn.data.sources.reverse import reverse_source
from imdbattn.data.split_names import by_split
from imdbattn.data.splits import Source, Split, Texts
from imdbattn.data.symbols import symbols_of, tokenizers_of
from imdbattn.data.user_files.pair_files import Pair, aligned_files, read_aligned, read_pairs
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.io.files import sha256_of, with_home
from imdbattn.settings.pair_settings import TranslationSettings

log = logging.getLogger(__name__)

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
            return aligned_source(path, name, settings)
        return file_source("path", name, path, settings)
    columns = sorted(settings.languages)
    file = PACKAGED.with_name(f"pairs_{'-'.join(columns)}.tsv")
    name = f"Packaged pairs {'-'.join(settings.languages)}, of few words and patterns"
    return file_source("packaged", name, file, settings, swapped=settings.languages != columns)


def file_source(
    kind: str, name: str, file: Path, settings: TranslationSettings, swapped: bool = False
) -> Source:
    """Returns the pairs of a file. swapped: whether the target is its first column."""

    def load() -> Texts:
        return clean({"": read_pairs(file, swapped)}, name, settings)

    return Source(kind, name, repr((sha256_of(file), swapped, settings.limit)), load)


def custom_pairs(settings: TranslationSettings) -> Source:
    """Returns the pairs of a custom callable."""
    from imdbattn.data.sources.custom import content_of, custom_items, source_name

    items = custom_items(settings.source, (str,))
    name = source_name(settings.source)

    def load() -> Texts:
        return clean(items, name, settings)

    return Source("custom", name, repr((name, content_of(items), settings.limit)), load)


def aligned_source(folder: Path, name: str, settings: TranslationSettings) -> Source:
    """Returns two aligned files for each split in a folder, such as train.en and train.fr."""
    files = aligned_files(folder, list(settings.languages))
    sums = {}
    for split, sides in files.items():
        sums[split] = [(file.name, sha256_of(file)) for file in sides]

    def load() -> Texts:
        pairs = {split: read_aligned(sides) for split, sides in files.items()}
        return clean(pairs, name, settings)

    return Source("path", name, repr((sums, settings.limit)), load)


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
