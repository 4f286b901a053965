"""Any data set of reviews of the library `datasets`: from the hub, or a folder of save_to_disk."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.data.labels import as_label, check_column, with_class_numbers
from imdbattn.data.split_names import split_named
from imdbattn.data.splits import SPLITS, Source, Texts, fingerprint
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.io.network import load_hub

if TYPE_CHECKING:
    from imdbattn.settings.schema import ReviewDataSettings


log = logging.getLogger(__name__)


def hub_reviews(cfg: "ReviewDataSettings") -> Source:
    """Returns the reviews of the hub's data set data.hub, in the configuration data.hub_config."""
    with wrapping_errors(f"data.hub={cfg.hub}"):
        dataset = load_hub(str(cfg.hub), name=cfg.hub_config)
    name = f"{cfg.hub} (hub)" if cfg.hub_config is None else f"{cfg.hub}, {cfg.hub_config} (hub)"
    return reviews_of(dataset, "hub", name, f"data.hub={cfg.hub}", cfg)


def saved_reviews(path: Path, cfg: "ReviewDataSettings") -> Source:
    """Returns the reviews of a folder that `save_to_disk` of a Dataset or DatasetDict wrote."""
    import datasets

    with wrapping_errors(path):
        dataset = datasets.load_from_disk(str(path))
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    state = state_of(files, path)
    return reviews_of(dataset, "path", str(path.resolve()), str(path), cfg, state)


def state_of(files: Iterable[Path], folder: Path) -> str:
    """Returns a checksum of the names in a folder, sizes and modification times of files."""
    stats = ((file.relative_to(folder), file.stat()) for file in files)
    return fingerprint(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in stats)


def is_saved(path: Path) -> bool:
    """Returns whether `save_to_disk` wrote the folder."""
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def reviews_of(dataset: Any, kind: str, name: str, title: str, cfg: Any, state: str = "") -> Source:
    """Returns the source of a Dataset or DatasetDict.

    title: for messages. state: of its files. Raises UserError, before the texts are read, for a
    split or a column that is missing.
    """
    if isinstance(dataset, Mapping):
        tables = chosen_splits(dataset, title, cfg.hub_splits)
    else:
        tables = {"": dataset}
    columns = (cfg.text_column, cfg.label_column)
    for table in tables.values():
        for setting, column in zip(("text", "label"), columns, strict=True):
            check_column(title, column, table.column_names, f"data.{setting}_column")
    label_names = list(cfg.label_names) if cfg.label_names else None
    given = next(iter(tables.values())).features[cfg.label_column]
    class_names = list(getattr(given, "names", None) or ())

    def load() -> Texts:
        read = {split: read_table(table, columns, title) for split, table in tables.items()}
        places = {split: f"{title}, {split}" if split else title for split in tables}
        return with_class_numbers(read, label_names or class_names, name, columns[1], places)

    prints = {split: table._fingerprint for split, table in tables.items()}
    key = repr((name, prints, state, columns, label_names))
    return Source(kind, name, key, load)


def chosen_splits(
    dataset: Mapping[str, Any], title: str, wanted: Mapping[str, str] | None
) -> dict[str, Any]:
    """Returns the splits by their names in SPLITS; a data set with one split, `train`, is the split
    "".

    wanted: data.hub_splits. Raises UserError if a split is missing, or two have one name.
    """
    known = ", ".join(dataset)
    chosen: dict[str, str] = dict(wanted or {})
    for ours, theirs in chosen.items():
        if theirs not in dataset:
            raise UserError(f"{title}: no split {theirs} (data.hub_splits.{ours}); it has {known}")
    for theirs in () if wanted else dataset:
        known_as, _ = split_named(theirs)
        if known_as in chosen:
            raise UserError(
                f"{title}: several splits are {known_as} ({known}): set data.hub_splits"
            )
        if known_as is not None:
            chosen[known_as] = theirs
    if not chosen:
        raise UserError(
            f"{title}: its splits {known} are none of {', '.join(SPLITS)}: set data.hub_splits,"
            " such as {train: <its name>}"
        )
    if others := [theirs for theirs in dataset if theirs not in chosen.values()]:
        log.warning("%s: not used: %s", title, ", ".join(others))
    if list(chosen) == ["train"]:
        return {"": dataset[chosen["train"]]}
    return {ours: dataset[theirs] for ours, theirs in chosen.items()}


def read_table(table: Any, columns: tuple[str, str], title: str) -> tuple[list[str], list[str]]:
    """Returns the texts and labels of a split. Raises UserError for a row without one of them."""
    text_column, label_column = columns
    texts, values = list(table[text_column][:]), list(table[label_column][:])
    names = getattr(table.features[label_column], "names", None)
    labels = []
    for row, (text, value) in enumerate(zip(texts, values, strict=True)):
        where = f"{title}: row {row} (counted from 0)"
        if not isinstance(text, str):
            raise UserError(f"{where} has no text in '{text_column}': remove it")
        is_nan = value != value
        if value is None or is_nan or (names and not 0 <= value < len(names)):
            raise UserError(f"{where} has no label in '{label_column}': remove it")
        if isinstance(value, (list, dict)):
            raise UserError(f"{where} has several labels, which are not supported")
        labels.append(names[value] if names else as_label(value))
    return texts, labels
