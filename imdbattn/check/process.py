"""Runs a student's file in a child process, reads its messages, and kills it with all processes that it started."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imdbattn.errors import UserError

KEPT = 2000  # last bytes that the file prints
START = 120  # seconds for the import of torch


@dataclass
class Outcome:
    """results: dicts with the fields of rules.Result."""

    parts: dict[str, list[str]] = field(default_factory=dict)  # parts of the file -> names of their checks
    results: list[dict[str, Any]] = field(default_factory=list)
    doing: list[str] = field(default_factory=list)  # part and check
    printed: bytes = b""
    done: bool = False

    def take(self, message: dict[str, Any]) -> None:
        if "error" in message:
            raise UserError(message["error"])
        self.parts = message.get("parts", self.parts)
        self.doing = message.get("doing", self.doing)
        self.results += [message["result"]] if "result" in message else []
        self.done = "done" in message


def run(file: Path, names: Mapping[str, str], seconds: float, gibibytes: float) -> Outcome:
    """Checks the file. A check that does not end, or that ends the process, is a finding. Raises UserError."""
    read, write = os.pipe()
    limits = [str(int(seconds) + START), str(int(gibibytes * 2**30))]
    command = [sys.executable, "-P", "-m", "imdbattn.check.child", str(write), *limits, str(file), json.dumps(names)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.Popen(
        command,
        env=environment,
        pass_fds=[write],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    os.close(write)
    assert child.stdout
    outcome = Outcome()
    try:
        listen(child, read, child.stdout.fileno(), outcome, seconds)
    finally:
        late = child.poll() is None
        with suppress(OSError):  # all have ended
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        os.close(read)
    if not outcome.done:
        outcome.results.append(unfinished(outcome, child.returncode, late, seconds))
        outcome.results += missing(outcome)
    return outcome


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


def missing(outcome: Outcome) -> list[dict[str, Any]]:
    known = {(result["part"], result["check"]) for result in outcome.results}
    reason = {"held": False, "finding": "blocked", "sentence": "Not reached.", "example": "", "fix": ""}
    every = [(part, check) for part, checks in outcome.parts.items() for check in checks]
    return [{"part": part, "check": check, **reason} for part, check in every if (part, check) not in known]
