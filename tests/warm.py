"""Forks the package's commands from a process that has imported everything: a command starts in 0.1
s instead of 4.

`python -m tests.warm <file descriptor of a socket>`, started by processes.WarmCommands. Each
command gets a fork of its own, with its own process id, session, working folder, environment,
standard streams and exit status.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import sys
import threading
import traceback
from pathlib import Path

COMMANDS = (
    "train",
    "evaluate",
    "predict",
    "compare",
    "dashboard",
    "export",
    "search",
    "faithfulness",
    "explore",
    "check",
)
# What the package imports inside functions.
LAZY = (
    "datasets jinja2 lightning.pytorch.loggers matplotlib.backends.backend_agg"
    " matplotlib.backends.backend_svg "
)
LAZY += (
    "matplotlib.figure pyarrow.csv pyarrow.json pyarrow.parquet sacrebleu scipy.stats"
    " torch.utils.data "
)
LAZY += "statsmodels.stats.contingency_tables statsmodels.stats.multitest wandb.apis.public"


def import_everything() -> None:
    import imdbattn

    imdbattn.prepare()
    for module in pkgutil.walk_packages(imdbattn.__path__, "imdbattn."):
        if module.name.removeprefix("imdbattn.") not in COMMANDS:
            importlib.import_module(module.name)
    for name in LAZY.split():
        importlib.import_module(name)
    compose_once()
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    # pyarrow's allocator restarts its own after a fork
    threads = [name for name in names if name != "jemalloc_bg_thd"]
    assert len(threads) == 1, f"a fork copies one thread only, not {threads}"
    gc.collect()
    gc.freeze()  # no collection touches these pages again, which would copy them


def compose_once() -> None:
    """Composes settings as each command does: Hydra's parser is several times faster after its
    first words.
    """
    from hydra import compose, initialize_config_dir

    from imdbattn.settings.keys import conf_dir

    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        compose(
            "train",
            ["model=residual_pe", "seed=2", "data.path=a b.csv", "+trainer.callbacks=[{a: 1}]"],
        )


def next_command(requests: socket.socket) -> str:
    """Waits for requests and forks. Returns the command's module, in the fork only; ends at the end
    of the requests.
    """
    requests.send(b".")
    while True:
        _, streams, *_ = socket.recv_fds(requests, 1, 4)
        if not streams:
            sys.exit()
        if (pid := os.fork()) == 0:
            return become(requests, *streams)
        for stream in streams:
            os.close(stream)
        requests.send(pid.to_bytes(4, "little"))
        _, status = os.waitpid(pid, 0)
        requests.send(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))


def become(requests: socket.socket, request: int, *streams: int) -> str:
    """Turns this fork into the command that the request describes; returns its module."""
    import numpy as np

    os.setsid()
    requests.close()
    with open(request) as file:
        module, arguments, folder, environment = json.load(file)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = os.getcwd()
    sys.argv[1:] = arguments
    importlib.invalidate_caches()
    np.random.seed()  # other than in the next fork
    return module


def run_to_the_end(module: str) -> None:
    """Ends this process as `python -m` would, but without freeing the memory of all modules, which
    takes 0.3 s.
    """
    status: object = None
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
        if not isinstance(status, int | None):
            print(status, file=sys.stderr)
    except BaseException:
        status = 1
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    import_everything()
    run_to_the_end(next_command(socket.socket(fileno=int(sys.argv[1]))))
