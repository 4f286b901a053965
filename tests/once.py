"""What does not change while tests run is read once in a process and its forks: the files that
Hydra composes, whose parsing takes a third of a composition, and the metadata of installed
packages, for which every Trainer and every run asks.
"""

import os
import pickle
from functools import cache
from importlib import metadata
from pathlib import Path

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.plugins.config_source import ConfigResult

parse = FileConfigSource.load_config


def read_once() -> None:
    FileConfigSource.load_config = load
    metadata.entry_points, metadata.version = cache(metadata.entry_points), cache(metadata.version)


@cache
def parsed(provider: str, folder: str, name: str, modified: int) -> bytes:
    """The file with this name in the folder, pickled; again after it was modified."""
    return pickle.dumps(parse(FileConfigSource(provider, folder), name))


def load(source: FileConfigSource, config_path: str) -> ConfigResult:
    """The content of a file of settings, as Hydra's own method."""
    name = source._normalize_file_name(config_path)
    file = Path(source.path, name)
    if not file.exists():
        return parse(source, config_path)  # which raises Hydra's error
    return pickle.loads(parsed(source.provider, source.path, name, file.stat().st_mtime_ns))


def read_all(folder: Path) -> None:
    """Reads all files of settings in a folder, as commands will."""
    source = FileConfigSource("main", str(folder))
    for file in folder.rglob("*.yaml"):
        source.load_config(os.path.relpath(file, folder))
