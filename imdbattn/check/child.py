"""Runs a student's file: `python -m imdbattn.check.child <descriptor> <seconds> <bytes> <file> <names>`.

Messages are lines of JSON, written to the descriptor. What the file prints goes to the standard streams.
"""

import json
import os
import resource
import sys
from contextlib import suppress

import torch

from imdbattn.check.subject import check


def limit(seconds: int, more: int) -> None:
    """Limits the processor time, and the memory to `more` bytes beyond those that Python and torch have reserved.

    macOS does not support the limit of memory.
    """
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm") as file:
            reserved = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (reserved + more, reserved + more))


def main() -> None:
    descriptor, seconds, memory, file, names = sys.argv[1:]
    sys.argv[1:] = []
    torch.set_num_threads(1)
    with os.fdopen(int(descriptor), "w") as pipe:
        os.set_inheritable(pipe.fileno(), False)
        limit(int(seconds), int(memory))
        for message in check(file, json.loads(names)):
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()
        os._exit(0)  # threads and exit handlers of the file do not delay the end


if __name__ == "__main__":
    main()
