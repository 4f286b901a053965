"""Reviews read by the library `datasets`: IMDB's official halves or another data set on the Hugging
Face hub, or a folder that save_to_disk wrote.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from imdbattn.data.labels import check_column, counted, with_class_numbers
from imdbattn.data.split_names import by_split
from imdbattn.data.splits import Source, Texts
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.settings.schema import ReviewDataSettings

IMDB = "stanfordnlp/imdb"
IMDB_REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"  # a commit, whose files cannot change


@functools.cache  # the jobs of a sweep are forks of a process that has opened it
def load_hub(setting: str, dataset: str, **arguments: object) -> Any:
    """Calls `datasets.load_dataset` without progress bars. Raises UserError that begins with the
    setting.
    """
    with wrapping_errors(setting):
        import datasets

        datasets.disable_progress_bars()
        return datasets.load_dataset(dataset, **arguments)


def hub_reviews(settings: ReviewDataSettings) -> Source:
    """Returns the reviews of the hub's data set data.hub, in the configuration data.hub_config; if
    they are not set, both official halves of IMDB.
    """
    hub, config = settings.hub, settings.hub_config
    if hub is None:
        halves = {
            half: load_hub("data.source=hub", IMDB, split=half, revision=IMDB_REVISION)
            for half in ("train", "test")
        }
        return reviews_of(halves, "hub", "IMDB official halves (hub)", settings)
    name = f"{hub} (hub)" if config is None else f"{hub}, {config} (hub)"
    return reviews_of(load_hub(f"data.hub={hub}", hub, name=config), "hub", name, settings)


def saved_reviews(path: Path, settings: ReviewDataSettings) -> Source:
    """Returns the reviews of a folder that `save_to_disk` of a Dataset or DatasetDict wrote."""
    import datasets

    with wrapping_errors(path):
        dataset = datasets.load_from_disk(str(path))
    return reviews_of(dataset, "path", str(path.resolve()), settings)


def is_saved(path: Path) -> bool:
    """Returns whether `save_to_disk` wrote the folder."""
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def reviews_of(dataset: Any, kind: str, name: str, settings: ReviewDataSettings) -> Source:
    """Returns the source of a Dataset or DatasetDict.

    Raises an exception, before the texts are read, for a split or a column that is missing.
    """
    tables, chosen = {"": dataset}, dict[str, Any]()
    if isinstance(dataset, Mapping):
        for ours, theirs in (settings.hub_splits or {}).items():
            chosen[ours] = dataset[theirs]
        remedy = "set data.hub_splits, such as {train: <its name>}"
        tables = by_split(chosen or dataset, name, remedy)
    columns = (settings.text_column, settings.label_column)
    for table in tables.values():
        check_column(name, settings.text_column, table.column_names, "data.text_column")
        check_column(name, settings.label_column, table.column_names, "data.label_column")
    labels = next(iter(tables.values())).features[settings.label_column]
    class_names = getattr(labels, "names", None)  # of a ClassLabel

    def load() -> Texts:
        rows = {split: rows_of(table, columns, name) for split, table in tables.items()}
        return with_class_numbers(rows, settings.label_names or class_names, name)

    prints = {split: table._fingerprint for split, table in tables.items()}
    # A saved data set is the same in another folder.
    identity = repr((name if kind == "hub" else "", prints, columns, settings.label_names))
    return Source(kind, name, identity, load)


def rows_of(table: Any, columns: tuple[str, str], name: str) -> list[tuple[str, object]]:
    """Returns text and label of each row of a split, "" for a missing label. Raises UserError for a
    row without a text, or with several labels.
    """
    names = getattr(table.features[columns[1]], "names", None)
    texts, labels = (table[column][:] for column in columns)
    rows = []
    for row, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str) or isinstance(label, (list, dict)):
            problem = "several labels" if isinstance(text, str) else f"no text in '{columns[0]}'"
            raise UserError(f"{name}: {counted(row)} has {problem}: remove it")
        if label is None or (names and label < 0):  # -1 stands for no label
            label = ""
        elif names:
            label = names[label]
        rows.append((text, label))
    return rows
