"""What does not change while tests run is read once in a process and its forks: the metadata of
installed packages, for which every Trainer and every run asks, and the files that Hydra composes,
whose parsing takes a third of a composition.
"""

import pickle
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins


def ask_once() -> None:
    """Keeps the answers of importlib.metadata; to be called before Lightning imports it."""
    metadata.entry_points, metadata.version = cache(metadata.entry_points), cache(metadata.version)


def parse_once(files: Iterable[Path] = (), folder: Path = Path()) -> None:
    """Keeps the content of Hydra's files until they are modified; these files in a folder are read
    now.
    """
    Plugins.instance()  # which imports Hydra's own plugins again
    kind = SourcesRegistry.instance().resolve("file")
    parse = kind.load_config

    @cache
    def parsed(provider: str, place: str, name: str, modified: int) -> bytes:
        return pickle.dumps(parse(kind(provider, place), name))

    def load(source, config_path: str):
        name = source._normalize_file_name(config_path)
        file = Path(source.path, name)
        if not file.exists():
            return parse(source, config_path)  # which raises Hydra's error
        return pickle.loads(parsed(source.provider, source.path, name, file.stat().st_mtime_ns))

    kind.load_config = load
    for file in files:
        kind("main", str(folder)).load_config(str(file.relative_to(folder)))
