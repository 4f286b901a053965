"""A small world for the tests: GloVe of a hundred words, reviews made of them, and every config composed by Hydra."""

import csv
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from imdbattn.settings.cli import SWEEP_PID, conf_dir, plain_dict
from imdbattn.settings.schema import validate
from tests.processes import ROOT, WarmCommands

# No test waits for the hub or uses a W&B account; commands import this checkout.
os.environ |= {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT)}

# What Lightning sets in this process where a test trains.
LEFT_BY_LIGHTNING = ("CUBLAS_WORKSPACE_CONFIG", "PL_GLOBAL_SEED", "PL_SEED_WORKERS")

POSITIONAL = ("base_pe", "residual_pe", "residual_learned", "residual_pe_cls")
GOOD, BAD = ("good", "great", "lovely", "fine"), ("bad", "awful", "dull", "poor")
FILLER = ("the", "film", "was", "a", "story", "of", "and", "it", "n't", "do", "actor", "scene", "plot", "i", "you", ".")


@pytest.fixture(autouse=True)
def outside_of_a_sweep(monkeypatch):
    """A sweep that was started in this process ends with its test."""
    monkeypatch.setenv(SWEEP_PID, "")


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """A folder with glove.txt (10 dimensions) and reviews.csv (240 reviews, neg and pos)."""
    folder = tmp_path_factory.mktemp("world")
    os.environ["IMDBATTN_CACHE"] = f"{folder}/cache"
    rng = np.random.default_rng(0)
    words = [*FILLER, *GOOD, *BAD, *(f"word{i}" for i in range(76))]
    lines = [f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=10))}\n" for word in words]
    (folder / "glove.txt").write_text("".join(lines))
    draw = random.Random(0)
    with (folder / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for number in range(240):
            label = number % 2
            text = draw.choices(FILLER, k=draw.randint(2, 30)) + draw.choices((BAD, GOOD)[label], k=3)
            draw.shuffle(text)
            writer.writerow((f"{' '.join(text)} word{draw.randint(0, 75)} r{number}", ("neg", "pos")[label]))
    return folder


@pytest.fixture(scope="session")
def small(world) -> list[str]:
    """Overrides that let any rung train on the small world in a second."""
    return [
        f"data.path={world}/reviews.csv",
        f"data.glove.path={world}/glove.txt",
        "data.glove.dim=10",
        f"data.cache_dir={world}/cache",
        "data.batch_tokens=256",
        "logger=csv",
        "trainer=cpu",
        "trainer.enable_progress_bar=false",
        "threads=1",
        "pictures=false",
    ]


@pytest.fixture(scope="session")
def settings():
    """settings(overrides..., config="train"): the plain settings that a command line would give."""

    def composed(*overrides: str, config: str = "train") -> dict:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            found = plain_dict(compose(config, overrides=list(overrides)))
            return validate(found).model_dump() if config == "train" else found

    return composed


@pytest.fixture(scope="session")
def data_settings(settings):
    """data_settings(overrides...): the group `data` of those settings, as an object."""
    return lambda *overrides: validate(settings(*overrides)).data


@pytest.fixture(scope="session")
def warm_commands():
    started: list[WarmCommands] = []

    def get() -> WarmCommands:
        if not started:
            started.append(WarmCommands())
        return started[0]

    yield get
    for commands in started:
        commands.close()


@pytest.fixture(scope="session")
def shell(warm_commands, tmp_path_factory):
    """shell("train", "model=mean", ...): runs a command as a user would, in an empty folder; returns the process.

    In a fork of a process that has imported everything, or with real=True, or with environment variables that imports
    may read, in a new process. input: text for its standard input, which is empty otherwise.
    """

    def run(
        command: str,
        *arguments: str,
        cwd: Path | None = None,
        env: dict | None = None,
        input: str | None = None,
        real: bool = False,
    ) -> subprocess.CompletedProcess:
        folder = cwd or tmp_path_factory.mktemp("cwd")
        mine = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_BY_LIGHTNING)}
        merged = {name: value for name, value in {**mine, **(env or {})}.items() if value is not None}
        if not real and warm_commands().suits(merged):
            return warm_commands().run([command, *arguments], folder, merged, input or "", timeout=240)
        return subprocess.run(
            [sys.executable, "-m", f"imdbattn.{command}", *arguments],
            cwd=folder,
            text=True,
            capture_output=True,
            timeout=240,
            check=False,
            env=merged,
            input=input or "",
        )

    return run


@pytest.fixture(scope="session")
def trained(small, settings, tmp_path_factory):
    """trained("residual"): run folder and metrics of a rung trained on the small world, once in a session.

    trained("pretrained") goes on from an encoder that is pretrained there first.
    """
    from imdbattn.runs.fit import fit

    runs: dict[tuple[str, ...], tuple[Path, dict]] = {}

    def train(rung: str, *overrides: str) -> tuple[Path, dict]:
        if rung == "pretrained" and "task=masked_words" not in overrides:
            overrides = (f"init={train(rung, 'task=masked_words', 'trainer.max_epochs=2')[0]}", *overrides)
        if (key := (rung, *overrides)) not in runs:
            folder = tmp_path_factory.mktemp(rung)
            runs[key] = (
                folder,
                fit(settings(*small, f"model={rung}", "trainer.max_epochs=20", "patience=null", *overrides), folder),
            )
        return runs[key]

    return train
