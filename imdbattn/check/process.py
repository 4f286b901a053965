"""Checks a student's file in a child process, and ends it with all processes that it started."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from imdbattn.check.report import Outcome

KEPT = 2000  # last bytes that the file prints
START = 120  # seconds for the import of torch
CALL = "from imdbattn.check.process import child; child()"


def run(file: str, names: Mapping[str, str], seconds: float, gibibytes: float) -> Outcome:
    """Checks the file. A check that does not end, or that ends the process, is a finding. Raises UserError."""
    read, write = os.pipe()
    arguments = [str(write), str(int(seconds) + START), str(int(gibibytes * 2**30)), os.path.abspath(file)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    mark = f"IMDBATTN_CHECK={uuid.uuid4()}"
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CALL, *arguments, json.dumps(dict(names))],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            **dict([mark.split("=")]),
        },
        pass_fds=[write],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(write)
    assert child.stdout
    outcome = Outcome(file)
    try:
        listen(child, read, child.stdout.fileno(), outcome, seconds)
    finally:
        late = child.poll() is None
        with suppress(OSError):  # all have ended
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        kill_marked(mark.encode())
        child.stdout.close()
        os.close(read)
    if not outcome.done:
        outcome.results.append(unfinished(outcome, child.returncode, late, seconds))
        outcome.add_unreached()
    return outcome


def kill_marked(mark: bytes) -> None:
    """Ends the processes in whose environment the mark is, also those in other sessions. Linux only."""
    found = True
    while found:
        found = False
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # of another user, or it has ended
                if mark in environment.read_bytes().split(b"\0"):
                    os.kill(int(environment.parent.name), signal.SIGKILL)
                    found = True


def listen(child: subprocess.Popen, messages: int, prints: int, outcome: Outcome, seconds: float) -> None:
    """Reads until the child is done, has ended, or exceeds its time, which starts when torch is imported."""
    text, deadline = b"", time.monotonic() + START
    with selectors.DefaultSelector() as selector:
        selector.register(messages, selectors.EVENT_READ)
        selector.register(prints, selectors.EVENT_READ)
        while not outcome.done and time.monotonic() < deadline:
            ended = child.poll() is not None  # before reading, so that all output is read
            ready = selector.select(timeout=0.1)
            for key, _ in ready:
                if not (data := os.read(key.fd, 65536)):
                    selector.unregister(key.fd)
                elif key.fd == prints:
                    outcome.printed = (outcome.printed + data)[-KEPT:]
                else:
                    *lines, text = (text + data).split(b"\n")
                    if lines and not outcome.doing:
                        deadline = time.monotonic() + seconds
                    for line in lines:
                        outcome.take(json.loads(line))
            if ended and not any(key.fd == messages for key, _ in ready):
                return
            if messages not in selector.get_map() and not ended:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(0, deadline - time.monotonic()))
                return


def unfinished(outcome: Outcome, status: int, late: bool, seconds: float) -> dict[str, Any]:
    """The finding for a child that was late or ended before it was done."""
    if not outcome.doing:
        raise RuntimeError(f"the process did not start: {outcome.printed.decode(errors='replace')}")
    part, check = outcome.doing
    result = {"part": part, "check": check, "held": False, "example": ""}
    if late or status == -signal.SIGXCPU:
        sentence = f"This check did not end within {seconds:g} seconds, the limit of the whole run."
        return {**result, "finding": "too-slow", "sentence": sentence, "fix": "Look for an endless loop."}
    by = f"by the signal {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
    fix = "Call neither exit() nor os._exit(); a signal can be a lack of memory."
    return {**result, "finding": "ended-early", "sentence": f"The file ended the process {by}.", "fix": fix}


# --- in the child process ---------------------------------------------------------------------------------------------


def child() -> None:
    """Writes messages as lines of JSON to the descriptor. What the file prints goes to the standard streams."""
    import torch

    from imdbattn.check.parts import check

    descriptor, seconds, memory, file, names = sys.argv[1:]
    sys.argv[1:] = []
    owner = os.getpid()
    torch.set_num_threads(1)
    os.set_inheritable(int(descriptor), False)
    limit(int(seconds), int(memory))
    for message in check(file, json.loads(names)):
        if os.getpid() != owner:  # a fork that the file has made
            break
        os.write(int(descriptor), json.dumps(message).encode() + b"\n")
    os._exit(0)  # threads and exit handlers of the file do not delay the end


def limit(seconds: int, more: int) -> None:
    """Limits the processor time, and the memory to `more` bytes beyond those that Python and torch have reserved.

    macOS does not support the limit of memory.
    """
    import resource

    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm") as file:
            reserved = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (reserved + more, reserved + more))
