"""Ends a command after an exception: one line, exit status 2, and the traceback in a file."""

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from imdbattn.errors import UserError, one_line, visible
from imdbattn.folders.run_folder import finished
from imdbattn.io.files import remove_empty


def fail(
    error: Exception, command: str, folder: Path | None = None, created: Iterable[Path] = ()
) -> NoReturn:
    """Prints an error in one line and exits with status 2. Only a UserError has a message meant for
    the user; the first process of a machine prints it for all.

    The traceback of any other exception is written into error.log in the folder if it has an
    unfinished run, else into a temporary file. Of the folders that the command has `created`, those
    that contain nothing but a log are removed.
    """
    if isinstance(error, BrokenPipeError):  # `| head -1`, for example, ends the pipe
        # Python flushes stdout once more at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    is_first = all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "SLURM_LOCALID"))
    if isinstance(error, UserError):
        if is_first:
            print(f"error: {visible(one_line(error, None))}", file=sys.stderr)
    else:  # perhaps in one process only, so each prints its own
        if folder and is_first and (folder / "config.yaml").exists() and not finished(folder):
            file = os.path.relpath(folder / "error.log")
        else:
            file = tempfile.mkstemp(prefix=f"imdbattn-{command}-", suffix=".log")[1]
        Path(file).write_text("".join(traceback.format_exception(error)))
        line = one_line(f"{command}: {type(error).__name__}: {error}", 500)
        print(f"error: {visible(line)} (traceback: {file})", file=sys.stderr)
    remove_empty(created, f"{command}.log")
    sys.exit(2)
