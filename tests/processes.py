"""Processes that tests start, watch and kill."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Of commands, without what libraries set while tests train in this process. No test waits for the
# hub or uses a W&B account; commands import this checkout.
ENVIRONMENT = os.environ | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}
# Environment variables that tests set for commands of this process. Imports may read any other.
READ_LATE = ("COLUMNS", "IMDBATTN_", "MASTER_PORT", "NETRC", "SLURM_", "WANDB_")


def environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Returns the environment variables of a command with these changes; None removes one."""
    late = {name: value for name, value in os.environ.items() if name.startswith(READ_LATE)}
    merged = {**ENVIRONMENT, **late, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


@contextmanager
def started(command: list[str], **more: Any) -> Iterator[subprocess.Popen]:
    """A process in a session of its own, killed at the end with all processes that it has started.

    Ctrl-C ends it even where this process ignores SIGINT, which children inherit: as in `make test
    &`.
    more: arguments of subprocess.Popen.
    """
    default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, start_new_session=True, preexec_fn=default, **more) as process:
        try:
            yield process
        finally:
            with suppress(OSError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)


def started_command(
    command: str, *words: str, cwd: Path, env: Mapping[str, str | None] | None = None, **more: Any
) -> AbstractContextManager[subprocess.Popen]:
    """Starts `python -m imdbattn.<command> words...` as `started` does."""
    words = (sys.executable, "-m", f"imdbattn.{command}", *words)
    return started([*words], cwd=cwd, env=environment(env), **more)


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Waits until the condition is true; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def processes_about(path: Path) -> list[int]:
    """Processes that have `path` on their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(path) in words and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found
