"""A start loads what it uses and nothing else; benchmarks/commands.py measures its duration."""

import json
import os
import subprocess
import sys

import pytest

import imdbattn

from .marks import slow_except
from .processes import ROOT

HEAVY = {"torch", "lightning", "wandb", "datasets", "pandas", "matplotlib", "scipy", "statsmodels", "optuna"}
TIMED = {"PYTHONPROFILEIMPORTTIME": "1"}


def loaded(stderr: str) -> list[str]:
    """The modules that a process with PYTHONPROFILEIMPORTTIME imported, each when its import was done."""
    return [line.rpartition("|")[2].strip() for line in stderr.splitlines() if line.startswith("import time:")]


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


def test_a_prediction_loads_only_torch_and_what_reads_the_run(trained, folder_of, tmp_path):
    """From a run folder, a checkpoint and an export of a classifier, and from a run folder of an encoder-decoder."""
    folder, _ = trained("residual_pe")
    imdbattn.load(folder).export(tmp_path / "exported")
    code = """if True:
        import sys
        import imdbattn
        for place in sys.argv[1:]:
            print(imdbattn.load(place).predict("abc")[0].label)
        print(*sys.modules)"""
    places = [folder, folder / "checkpoints" / "last.ckpt", tmp_path / "exported", folder_of("seq2seq_attention")]
    words = [sys.executable, "-c", code, *map(str, places)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    *labels, modules = done.stdout.splitlines()
    assert len(labels) == len(places)
    slow = HEAVY - {"torch"} | {"hydra", "torchmetrics", "sklearn", "huggingface_hub"}
    assert not slow & set(modules.split())


@pytest.mark.slow
def test_compare_loads_no_torch(shell, trained, tmp_path):
    runs = ",".join(str(trained(rung)[0]) for rung in ("mean", "residual_pe"))
    done = shell("compare", f"runs=[{runs}]", f"out={tmp_path}", env=TIMED)
    assert done.returncode == 0
    assert not {"torch", "lightning", "wandb", "datasets"} & set(loaded(done.stderr))


def spin_count(**own: str) -> str:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in names} | own
    command = "import os, imdbattn; print(os.environ.get('GOMP_SPINCOUNT', ''))"
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_threads_do_not_wait_in_a_loop_beside_a_busy_process_unless_the_user_says_so():
    busy = subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    try:
        busy.stdout.readline()
        assert [spin_count(), spin_count(GOMP_SPINCOUNT="5"), spin_count(OMP_WAIT_POLICY="x")] == ["0", "5", ""]
    finally:
        busy.kill()
        busy.communicate()
    assert spin_count() in ("0", "30000")  # other tests may run beside this one
