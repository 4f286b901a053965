"""Files that are whole or absent: for everything that is written once and read often."""

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from imdbattn.errors import UserError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}
NO_PLACE = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
NOT_WRITABLE = NO_ROOM | NO_PLACE


def cache_root(setting: str | None) -> Path:
    """`setting`, else $IMDBATTN_CACHE, else $XDG_CACHE_HOME/imdbattn, else ~/.cache/imdbattn."""
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(setting or os.environ.get("IMDBATTN_CACHE") or xdg / "imdbattn").expanduser()


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Fill `folder` by build(temporary folder), rename it into place, return it; an existing folder is left as it is.

    Of several processes one builds and the others wait. A kill in the middle leaves only a temporary folder, which
    the next builder clears away. Raises UserError where the folder cannot be written, and what `build` raises.
    """
    temporary = folder.with_name(f"{folder.name}.tmp")
    with writing_into(folder.parent, way_out := "set data.cache_dir to another folder"):
        if folder.is_dir():  # without the lock: a finished cache may lie on a read-only disk
            return folder
        make_folder(folder.parent, way_out)
        with FileLock(f"{folder}.lock"):
            if folder.is_dir():  # another process was quicker
                return folder
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                temporary.mkdir()
                build(temporary)
                temporary.rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return folder


def make_folder(path: Path, way_out: str) -> None:
    """Makes a folder and those above it. Raises UserError where it cannot be, or there is no place as below /proc."""
    with writing_into(path, way_out):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:
            raise UserError(f"{path} cannot be made: {way_out}") from error


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write `path` whole or not at all. Raises UserError where its folder cannot be written."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    make_folder(path.parent, "choose another folder")
    with writing_into(path.parent, "choose another folder"):
        try:
            with open(temporary, "wb") as file:
                file.write(data.encode() if isinstance(data, str) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """Hex digest of a file, read as a stream."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path) -> None:
    """Notes the checksums of all files of a cache entry in checksums.json."""
    sums = {file.name: sha256_of(file) for file in sorted(folder.iterdir())}
    (folder / "checksums.json").write_text(json.dumps(sums))


def check_seal(folder: Path) -> None:
    """Raises UserError naming the file of a cache entry that is missing or changed, and the folder to delete."""
    name = "checksums.json"
    try:
        sums = json.loads((folder / name).read_bytes())
        for name, found in sums.items():
            if sha256_of(folder / name) != found:
                raise ValueError("changed since it was written")
        if not sums:
            raise ValueError("empty")
    except (OSError, ValueError, AttributeError) as error:
        why = f"{name}: {getattr(error, 'strerror', None) or error}"
        raise UserError(f"the cache is damaged ({why}): delete the folder {folder} and run again") from error


@contextmanager
def writing_into(folder: Path, way_out: str) -> Iterator[None]:
    """Turns "no space", "no permission" and their like into a UserError that names the folder and the way out."""
    try:
        yield
    except OSError as error:
        named = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if name]  # copies name both ends
        related = any(place in (folder, *folder.parents) or folder in place.parents for place in named or [folder])
        if error.errno not in NOT_WRITABLE or not related:  # such as a source that the builder may not read
            raise
        reason = os.strerror(error.errno)
        raise UserError(f"{folder} cannot be written ({reason}): make room, or {way_out}") from error
