"""The fixtures of all tests: a small world, settings, commands and trained runs."""

import copy
import functools
import gc
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from filelock import FileLock

from imdbattn.launch.command import PLUGINS
from imdbattn.launch.composition import composed as compose
from imdbattn.launch.hydra_config import plain_settings
from imdbattn.settings.command_settings import COMMANDS
from imdbattn.settings.schema import validate_as
from imdbattn.tasks.task import training_settings
from tests.commands import Done, run_here, run_process
from tests.processes import ENVIRONMENT, environment
from tests.world import REVERSE, write_world

os.environ |= ENVIRONMENT
sys.path.append(PLUGINS)  # Hydra looks for its plugins once in a process

# A first example may import torchmetrics or scikit-learn, which takes seconds on a busy machine.
hypothesis.settings.register_profile(
    "busy machine", deadline=None, max_examples=30, derandomize=True
)
hypothesis.settings.load_profile("busy machine")

# How a rung learns the small data, where tests need a model that has; of any other they only need a
# run. An epoch of layers takes three times as long as one without, so these learn faster.
LEARNED = dict.fromkeys(("mean", "learned_query", "tuned_mean"), ("trainer.max_epochs=20",))
LEARNED |= dict.fromkeys(
    ("base", "residual", "residual_pe"), ("trainer.max_epochs=8", "optim.lr=0.02")
)


def pytest_collection_finish() -> None:
    """Else garbage collections, which go through all modules, take a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(scope="session")
def shared(tmp_path_factory) -> Path:
    """A folder that all workers of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def world(shared) -> Path:
    """A folder with vectors.txt, reviews.csv, unlabeled.txt and labeled.csv; see tests/world.py."""
    folder = shared / "world"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            folder.mkdir()
            write_world(folder)
    return folder


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory) -> Path:
    """This worker's cache of data made from the small world; tests check its content."""
    os.environ["IMDBATTN_CACHE"] = str(folder := tmp_path_factory.mktemp("cache"))
    return folder


@pytest.fixture(scope="session")
def small(world, data_cache) -> list[str]:
    """Overrides that let any rung train on the small world in a second."""
    return [
        f"data.path={world}/reviews.csv",
        f"data.vectors.path={world}/vectors.txt",
        "data.vectors.dim=10",
        f"data.cache_dir={data_cache}",
        "data.batch_tokens=256",
        "logger=csv",
        "trainer=cpu",
        "trainer.enable_progress_bar=false",
        "threads=1",
        "pictures=false",
    ]


@pytest.fixture
def own_module(tmp_path, monkeypatch) -> Iterator[Callable[[str, str], Path]]:
    """own_module(name, source): the file of a module that can be imported until the test ends."""
    names: list[str] = []

    def write(name: str, source: str) -> Path:
        names.append(name)
        file = tmp_path / f"{name}.py"
        file.write_text(source, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        return file

    yield write
    for name in names:
        sys.modules.pop(name, None)


@functools.cache  # composing takes a tenth of a second, and half of all command lines repeat
def composed_once(config: str, *overrides: str) -> dict:
    return plain_settings(compose(config, overrides))


@pytest.fixture(scope="session")
def composed():
    """composed(overrides..., config="train"): the settings of a command line as a dict, not
    validated; composed once, whatever the environment is later.
    """

    def get(*overrides: str, config: str = "train") -> dict:
        return copy.deepcopy(composed_once(config, *overrides))

    return get


@pytest.fixture(scope="session")
def settings(composed):
    """settings(overrides..., config="train"): the validated settings of a command line."""

    def get(*overrides: str, config: str = "train") -> Any:
        values = composed(*overrides, config=config)
        if config == "train":
            return training_settings(values)
        return validate_as(COMMANDS[config], values)

    return get


@pytest.fixture(scope="session")
def data_settings(settings):
    """data_settings(overrides...): the group `data` of those settings, as an object."""
    return lambda *overrides: settings(*overrides).data


@pytest.fixture(scope="session")
def shell(tmp_path_factory):
    """shell("train", "model=mean", ...): runs a command as a user would, in an empty folder, and
    returns its output. It must end with the exit status `status`.

    In this process, or with real=True in one of its own: for signals, DDP, sweeps, and what
    imports do. env: further environment variables, or None to remove one. input: text for its
    standard input, which is empty otherwise.
    """

    def run(
        command: str,
        *arguments: str,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        input: str = "",
        real: bool = False,
        status: int = 0,
    ) -> Done:
        folder, variables = cwd or tmp_path_factory.mktemp("cwd"), environment(env)
        if real:
            words = ["-m", f"imdbattn.{command}", *arguments]
            done = run_process(words, folder, variables, input)
        else:
            done = run_here(command, arguments, folder, variables, input)
        assert done.returncode == status, (command, *arguments, done.stdout, done.stderr)
        return done

    return run


@pytest.fixture(scope="session")
def trained(small, world, settings, shared, data_cache, tmp_path_factory):
    """trained("residual"): run folder and metrics of a rung trained on the small world, once for
    all workers.

    As in LEARNED if it is there, unless another net is asked for; otherwise for one epoch. The
    folder is a copy of this worker's own.
    trained("pretrained") starts from a run that pretrains first.
    """
    from imdbattn.runs.fit import fit

    copies: dict[Path, Path] = {}

    def train(rung: str, *overrides: str) -> Path:
        if rung == "pretrained" and "task=masked_words" not in overrides:
            first = train(rung, "task=masked_words", "trainer.max_epochs=2")
            overrides = (f"init={first}", *overrides)
        if rung == "distilled":
            overrides = (f"data.extra={world}/labeled.csv", *overrides)
        digest = hashlib.sha256(repr(overrides).encode()).hexdigest()[:8]
        folder = shared / "runs" / (f"{rung}-{digest}" if overrides else rung)
        folder.parent.mkdir(exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not (folder / "metrics.json").exists():
                length = ("trainer.max_epochs=1",)
                if not any(word.startswith("model.net") for word in overrides):
                    length = LEARNED.get(rung, length)
                own = [word for word in small if word not in overrides]
                if "task=seq2seq" in overrides:  # pairs have their own data
                    own = [word for word in own if not word.startswith("data.")]
                own += [f"model={rung}", *length, "patience=null"]
                fit(settings(*own, *overrides), folder)
        return folder

    def get(rung: str, *overrides: str) -> tuple[Path, dict]:
        if (original := train(rung, *overrides)) not in copies:
            copies[original] = tmp_path_factory.mktemp(rung)
            shutil.copytree(original, copies[original], dirs_exist_ok=True)
            config = copies[original] / "config.yaml"
            own = re.sub(r"(?m)^  cache_dir: .*", f"  cache_dir: {data_cache}", config.read_text())
            config.write_text(own)
        return copies[original], json.loads((original / "metrics.json").read_text())

    return get


@pytest.fixture(scope="session")
def folder_of(trained):
    """folder_of("residual"): a run for the interactive page; residual_pe has two heads, and
    seq2seq_attention reverses strings.
    """
    own = {"residual_pe": ["model.net.layer.heads=2"], "seq2seq_attention": REVERSE}
    return lambda rung: trained(rung, *own.get(rung, []))[0]


@pytest.fixture(scope="session")
def page_of(settings):
    """page_of(folders...): a tests.explorer.Page of the runs in these folders."""
    from tests.explorer import Page

    return lambda *folders: Page(
        settings(f"runs=[{','.join(map(str, folders))}]", config="explore")
    )
