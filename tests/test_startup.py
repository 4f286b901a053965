"""A start loads what it uses and nothing else; benchmarks/commands.py measures its duration."""

import json
import os
import subprocess
import sys

import pytest

from .marks import slow_except
from .processes import ROOT

HEAVY = {"torch", "lightning", "wandb", "datasets", "pandas", "matplotlib", "scipy", "statsmodels", "optuna"}
TIMED = {"PYTHONPROFILEIMPORTTIME": "1"}


def loaded(stderr: str) -> list[str]:
    """The modules that a process with PYTHONPROFILEIMPORTTIME imported, each when its import was done."""
    return [line.rpartition("|")[2].strip() for line in stderr.splitlines() if line.startswith("import time:")]


@pytest.fixture(scope="module")
def lightning() -> set[str]:
    """What Lightning itself loads: matplotlib and scipy, for torchmetrics."""
    words = [sys.executable, "-c", "import torch, lightning"]
    return set(loaded(subprocess.run(words, capture_output=True, text=True, env=os.environ | TIMED).stderr))


@pytest.mark.parametrize(
    "command",
    slow_except(
        ["train"],
        ["train", "evaluate", "predict", "compare", "export", "dashboard", "search", "faithfulness", "explore"],
    ),
)
def test_help_loads_nothing_slow(shell, command):
    done = shell(command, "--help", env=TIMED)
    assert done.returncode == 0
    assert "hydra" in loaded(done.stderr)
    assert not (HEAVY | {"pydantic"}) & set(loaded(done.stderr))


@pytest.mark.parametrize("arguments", [["seed=-1"], ["--cfg", "job"]])
def test_settings_are_printed_and_checked_before_torch_is_loaded(shell, arguments):
    found = loaded(shell("train", *arguments, env=TIMED).stderr)
    assert "hydra" in found
    assert not HEAVY & set(found)


@pytest.mark.slow
def test_commands_load_no_more_than_lightning_and_what_they_use(small, trained, tmp_path):
    """One after another in a process that has loaded Lightning. tests/test_compare.py looks at the command compare."""
    commands = {
        "predict": [f"run={trained('mean')[0]}", "text=a fine film"],
        "evaluate": [f"run={trained('mean')[0]}", "split=test"],
        "train": [*small, "model=mean", "trainer.max_epochs=1"],
    }
    code = """if True:
        import importlib, json, sys
        import torch, lightning
        for command, arguments in json.loads(sys.argv[1]).items():
            before = set(sys.modules)
            sys.argv[:] = [command, *arguments]
            importlib.import_module(f"imdbattn.{command}").main()
            print("LOADED", command, *set(sys.modules) - before)"""
    words = [sys.executable, "-c", code, json.dumps(commands)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert [command for command, *_ in lines] == [*commands]
    for command, *found in lines:
        assert not (HEAVY - {"pandas"}) & set(found), command  # pyarrow loads pandas where it finds it


@pytest.mark.slow
def test_wandb_is_loaded_before_torch(shell, small):
    """pydantic looks through all modules for each class that wandb makes: with torch's it takes three times as long."""
    done = shell("train", *small, "logger=wandb", "model=mean", "trainer.max_epochs=1", env=TIMED)
    assert done.returncode == 0
    found = loaded(done.stderr)
    late = [name for name in found[found.index("torch") :] if name.startswith("wandb.apis.public")]
    assert "wandb.sdk.launch" in found  # what wandb.init wants it for
    assert not late


@pytest.mark.parametrize(
    ("own", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "x"}, "")]
)
def test_threads_do_not_wait_long_for_each_other_unless_the_user_says_so(own, expected):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | own
    command = "import os, imdbattn; print(os.environ.get('GOMP_SPINCOUNT', ''))"
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
