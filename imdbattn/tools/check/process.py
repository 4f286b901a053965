"""Checks a student's file in a child process, and ends it with all processes that it started."""

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from imdbattn.errors import UserError, one_line
from imdbattn.tools.check import source
from imdbattn.tools.check.findings import mistake
from imdbattn.tools.check.report import FORMATS, Outcome, Result, result_of
from imdbattn.tools.check.sheets import load

PRINTED_BYTES = 2000  # of what the file prints, the last bytes are kept
IMPORT_SECONDS = 120  # the import of torch may take so long
CHILD_CODE = "from imdbattn.tools.check.process import child; child()"


def run_all(options: argparse.Namespace) -> int:
    """Checks the files, prints the result in the chosen format, and returns the exit status."""
    if options.stub is not None:
        sys.stdout.write(load(options.stub).stub)
        return 0
    several = len(options.files) > 1
    kind = options.format or ("csv" if several else "text")
    if several and kind == "gradescope":
        raise UserError("--format gradescope is for one file: give one file per call")
    outcomes = []
    for file in options.files:
        try:
            source.read(file)
            outcome = check_in_child(file, options)
        except (UserError, OSError) as error:
            outcome = Outcome(file, error=one_line(error, None))
        if outcome.error and not several and kind != "gradescope":
            raise UserError(outcome.error)
        outcome.points = options.points
        outcome.require(dict.fromkeys([*options.require, *options.points]))
        outcomes.append(outcome)
    print(FORMATS[kind](outcomes))
    return max(outcome.status for outcome in outcomes)


def check_in_child(file: str, options: argparse.Namespace) -> Outcome:
    """Checks the file. A check that does not end, or that ends the process, is a finding."""
    from tempfile import TemporaryFile  # it imports random; students may have a random.py

    late = False
    path = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")])
    )
    own = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    own["TORCHDYNAMO_DISABLE"] = "1"  # torch.compile would compile for each shape of the checks
    with TemporaryFile() as messages, TemporaryFile() as prints:
        arguments = [str(messages.fileno()), os.path.abspath(file), json.dumps(vars(options))]
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD_CODE, *arguments],
            env=os.environ | own,
            pass_fds=[messages.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=prints,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            child.wait(IMPORT_SECONDS + options.seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with suppress(OSError):  # all have ended
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        messages.seek(0)
        complete = [line for line in messages if line.endswith(b"\n")]
        outcome = Outcome.from_json(complete[-1]) if complete else Outcome()
        outcome.file = file
        prints.seek(max(0, prints.seek(0, os.SEEK_END) - PRINTED_BYTES))
        outcome.printed = prints.read().decode(errors="replace").strip()
    if not (outcome.done or outcome.error):
        end_early(outcome, -signal.SIGALRM if late else child.returncode, options.seconds)
    return outcome


def end_early(outcome: Outcome, status: int, seconds: float) -> None:
    """Adds the finding, or the error, for a child that was stopped or ended before it was done."""
    by = f"with exit status {status}"
    if status < 0:
        by = f"by the signal {signal.Signals(-status).name}"
    if not outcome.doing:
        last_line = outcome.printed.rpartition("\n")[2]
        outcome.error = f"{outcome.file}: the checker ended {by} before it began: {last_line}"
        return
    finding = "too-slow" if status == -signal.SIGALRM else "ended-early"
    part, check = outcome.doing
    outcome.results.append(result_of(part, check, mistake(finding, seconds=seconds, by=by)))
    known = [(result.part, result.check) for result in outcome.results]
    for part, checks in outcome.parts.items():
        for check in checks:
            if (part, check) not in known:
                outcome.results.append(Result(part, check, None, "blocked", "Not reached."))


def child() -> None:
    """Runs in the child process: writes outcomes as lines of JSON to the descriptor in argv."""
    import gc
    import warnings

    gc.disable()  # what is imported remains
    import torch

    from imdbattn.tools.check.checking import check_file

    gc.freeze()
    gc.enable()
    descriptor, file, text = sys.argv[1:]
    options = argparse.Namespace(**json.loads(text))
    sys.argv[1:] = []
    owner = os.getpid()
    torch.set_num_threads(1)
    os.set_inheritable(int(descriptor), False)
    signal.setitimer(signal.ITIMER_REAL, options.seconds)
    limit(4 * options.memory)

    def write(outcome: Outcome) -> None:
        if os.getpid() != owner:  # a fork that the file has made
            os._exit(0)
        os.write(int(descriptor), json.dumps(asdict(outcome)).encode() + b"\n")

    outcomes = check_file(file, options.name, options.sheet)
    write(next(outcomes))  # before the import
    write(next(outcomes))  # after it
    limit(options.memory)
    warnings.simplefilter("ignore")  # the checks may cause warnings
    for outcome in outcomes:
        write(outcome)
    os._exit(0)  # threads and exit handlers of the file do not delay the end


def limit(gibibytes: float) -> None:
    """Limits the memory in addition to what is reserved now; macOS has no such limit."""
    import resource

    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))  # what it prints is in a file
        reserved = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(
            resource.RLIMIT_AS, (reserved + int(gibibytes * 2**30), resource.RLIM_INFINITY)
        )
