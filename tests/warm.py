"""Forks the package's commands from a process that has imported everything: a command starts in 0.1
s instead of 4.

`python -m tests.warm <file descriptor of a socket that listens>`, started by
processes.WarmCommands. Each connection is served by a fork, and each command gets a fork of that
one, with its own process id, session, working folder, environment, standard streams and exit
status.
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
from importlib import metadata
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
    from tests.once import ask_once

    ask_once()
    imdbattn.prepare()
    for module in pkgutil.walk_packages(imdbattn.__path__, "imdbattn."):
        if module.name.removeprefix("imdbattn.") not in COMMANDS:
            importlib.import_module(module.name)
    for name in LAZY.split():
        importlib.import_module(name)
    find_environment()
    compose_once()
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    # pyarrow's allocator restarts its own after a fork
    threads = [name for name in names if name != "jemalloc_bg_thd"]
    assert len(threads) == 1, f"a fork copies one thread only, not {threads}"
    gc.collect()
    gc.freeze()  # no collection touches these pages again, which would copy them


def find_environment() -> None:
    """Finds out what each run records of the checkout and of packages, and the plugins of
    Lightning's Trainer.
    """
    from imdbattn.runs.environment import environment

    environment()
    metadata.entry_points(group="lightning.pytorch.callbacks_factory")


def compose_once() -> None:
    """Composes settings as each command does: Hydra's parser is several times faster after its
    first words.
    """
    from hydra import compose, initialize_config_dir

    from imdbattn.settings.keys import conf_dir
    from tests.once import parse_once

    parse_once(conf_dir().rglob("*.yaml"), conf_dir())
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        compose(
            "train",
            ["model=residual_pe", "seed=2", "data.path=a b.csv", "+trainer.callbacks=[{a: 1}]"],
        )


def next_connection(listener: socket.socket) -> socket.socket:
    """Waits for connections and forks. Returns the connection, in the fork only; ends when all
    connections are closed.
    """
    forks = 0
    listener.settimeout(1)
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            while forks and os.waitpid(-1, os.WNOHANG)[0]:
                forks -= 1
            if not forks:
                os._exit(0)
            continue
        if os.fork() == 0:
            listener.close()
            connection.settimeout(None)
            return connection
        forks += 1
        connection.close()


def next_command(requests: socket.socket) -> str:
    """Waits for requests and forks. Returns the command's module, in the fork only; ends at the end
    of the requests.
    """
    requests.send(b".")
    while True:
        _, streams, *_ = socket.recv_fds(requests, 1, 4)
        if not streams:
            os._exit(0)
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
    run_to_the_end(next_command(next_connection(socket.socket(fileno=int(sys.argv[1])))))
