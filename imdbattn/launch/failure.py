"""Ends a command after an exception: one line, exit status 2, and the traceback in a file."""

import os
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from imdbattn.errors import UserError, in_line, visible

# environment variables: the number of this process on its machine
RANKS = ("LOCAL_RANK", "SLURM_LOCALID")


def first_on_machine() -> bool:
    """Returns whether this is the first process of a run on its machine."""
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def fail(error: Exception, command: str, folder: Path | None = None) -> NoReturn:
    """Prints an error in one line and exits with status 2. Only a UserError has a message meant for
    the user; the first process of a machine prints it for all.

    The traceback of any other exception is written into error.log in the folder if it has an
    unfinished run, else into a temporary file. A folder that contains nothing but a log is removed.
    """
    if isinstance(error, BrokenPipeError):  # `| head -1`, for example, ends the pipe
        # Python flushes stdout once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    if isinstance(error, UserError):
        if first_on_machine():
            print(f"error: {visible(in_line(error, None))}", file=sys.stderr)
    else:  # perhaps in one process only, so each prints its own
        unfinished = (
            folder and (folder / "config.yaml").exists() and not (folder / "metrics.json").exists()
        )
        if folder and unfinished and first_on_machine():
            file = os.path.relpath(folder / "error.log")
        else:
            file = tempfile.mkstemp(prefix=f"imdbattn-{command}-", suffix=".log")[1]
        Path(file).write_text("".join(traceback.format_exception(error)))
        line = in_line(f"{command}: {type(error).__name__}: {error}", 500)
        print(f"error: {visible(line)} (traceback: {file})", file=sys.stderr)
    if folder and folder != Path.cwd():
        remove_empty(folder, f"{command}.log")
    sys.exit(2)


def remove_empty(folder: Path, *logs: str) -> None:
    """Removes a folder that contains at most the files `logs`, and its parents that are empty and
    below the working directory.
    """
    if folder.is_dir() and {file.name for file in folder.iterdir()} <= {*logs}:
        for log in logs:
            (folder / log).unlink(missing_ok=True)
        with suppress(OSError):  # it is not empty
            folder.rmdir()
            for parent in folder.resolve().parents:
                if Path.cwd() not in parent.parents:
                    break
                parent.rmdir()
