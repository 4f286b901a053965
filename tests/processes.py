"""Processes that tests start, watch and kill."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

ROOT = Path(__file__).parents[1]
# Environment variables that are read while a command runs. Any other may be read by an import.
READ_LATE = ("COLUMNS", "IMDBATTN_", "MASTER_PORT", "NETRC", "SLURM_", "WANDB_")


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


class WarmCommands:
    """Runs commands of the package as `subprocess.run([python, "-m", ...])` does, each in a fork of
    tests/warm.py.

    All workers of pytest-xdist share its process, which starts in the first of them that needs it
    and ends after the last.
    """

    def __init__(self, environment: Mapping[str, str], shared: Path) -> None:
        self.environment = environment
        session = environment.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
        address = f"\0imdbattn tests {session}"  # of Linux's abstract sockets, which are no files
        with FileLock(shared / "warm.lock"):
            if not self.connects(address):
                start_warm(address, environment)
                assert self.connects(address), "tests/warm.py has ended"

    def connects(self, address: str) -> bool:
        """Connects to the process, and waits until it has imported everything; False without it."""
        self.connection = socket.socket(socket.AF_UNIX)
        try:
            self.connection.connect(address)
            return bool(self.connection.recv(1))
        except ConnectionError:  # there is none yet, or it ends now
            return False

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether an import would find the same environment variables as in tests/warm.py."""
        different = set(environment.items()) ^ set(self.environment.items())
        return all(name.startswith(READ_LATE) for name, _ in different)

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str] | None = None,
        text: str = "",
        timeout: float = 240,
    ) -> subprocess.CompletedProcess:
        """Runs `python -m module arguments` with `text` as its standard input."""
        with ExitStack() as stack:
            request, stdin, stdout, stderr = streams = [
                stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(4)
            ]
            json.dump((module, arguments, str(cwd), dict(environment or self.environment)), request)
            stdin.write(text)
            for stream in (request, stdin):
                stream.seek(0)
            socket.send_fds(self.connection, [b"."], [stream.fileno() for stream in streams])
            pid = int.from_bytes(self.connection.recv(4), "little")
            self.connection.settimeout(timeout)
            try:
                status = self.connection.recv(4)
            except TimeoutError:
                os.killpg(pid, signal.SIGKILL)
                self.connection.settimeout(None)
                self.connection.recv(4)
                raise
            self.connection.settimeout(None)
            for stream in (stdout, stderr):
                stream.seek(0)
            code = int.from_bytes(status, "little", signed=True)
            return subprocess.CompletedProcess(
                [module, *arguments], code, stdout.read(), stderr.read()
            )

    def close(self) -> None:
        self.connection.close()


def start_warm(address: str, environment: Mapping[str, str]) -> None:
    """Starts tests/warm.py, which listens at this address until nobody is connected."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        command = [sys.executable, "-m", "tests.warm", str(listener.fileno())]
        more: Any = {"cwd": ROOT, "env": environment, "pass_fds": [listener.fileno()]}
        subprocess.Popen(command, stdin=subprocess.DEVNULL, **more)


def wait_for(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Waits until the condition is true; fails after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
