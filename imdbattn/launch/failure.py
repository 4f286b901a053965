"""Ends a command after an exception: one line, exit status 2, and the traceback in a file."""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NoReturn

from imdbattn.errors import UserError, in_line, visible
from imdbattn.folders.run_folder import finished


def fail(
    error: Exception, command: str, folder: Path | None = None, before: Collection[Path] = ()
) -> NoReturn:
    """Prints an error in one line and exits with status 2. Only a UserError has a message meant for
    the user; the first process of a machine prints it for all.

    The traceback of any other exception is written into error.log in the folder if it has an
    unfinished run, else into a temporary file. A folder that contains nothing but a log is removed,
    and so are its parents, up to the first of the folders that were there `before`.
    """
    if isinstance(error, BrokenPipeError):  # `| head -1`, for example, ends the pipe
        # Python flushes stdout once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    is_first = all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "SLURM_LOCALID"))
    if isinstance(error, UserError):
        if is_first:
            print(f"error: {visible(in_line(error, None))}", file=sys.stderr)
    else:  # perhaps in one process only, so each prints its own
        if folder and is_first and (folder / "config.yaml").exists() and not finished(folder):
            file = os.path.relpath(folder / "error.log")
        else:
            file = tempfile.mkstemp(prefix=f"imdbattn-{command}-", suffix=".log")[1]
        Path(file).write_text("".join(traceback.format_exception(error)))
        line = in_line(f"{command}: {type(error).__name__}: {error}", 500)
        print(f"error: {visible(line)} (traceback: {file})", file=sys.stderr)
    if folder and before:
        created = takewhile(lambda path: path not in before, (folder, *folder.parents))
        remove_empty(created, f"{command}.log")
    sys.exit(2)


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
