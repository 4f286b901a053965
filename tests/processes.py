"""Processes that tests start, watch and kill."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any


@contextmanager
def started(command: list[str], **more: Any) -> Iterator[subprocess.Popen]:
    """A process in a session of its own, killed at the end with all that it has started there.

    Ctrl-C ends it even where this process ignores SIGINT, which children inherit: as in `make test &`.
    more: arguments of subprocess.Popen.
    """
    default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, start_new_session=True, preexec_fn=default, **more) as process:
        try:
            yield process
        finally:
            with suppress(OSError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Waits until the condition is true; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
