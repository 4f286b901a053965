"""A start loads what it uses and nothing else, also from the installed wheel."""

import sys
import zipfile
from pathlib import Path

import pytest

import imdbattn
from tests.commands import run_process
from tests.marks import slow_except
from tests.processes import ROOT, environment

HEAVY = {"torch", "lightning", "wandb", "datasets", "pandas", "matplotlib", "scipy"}
HEAVY |= {"statsmodels", "optuna"}
COMMANDS = ("train", "evaluate", "predict", "compare", "export", "dashboard", "search")
COMMANDS += ("faithfulness", "explore")
TIMED = {"PYTHONPROFILEIMPORTTIME": "1"}


def loaded(stderr: str) -> list[str]:
    """The modules that a process with PYTHONPROFILEIMPORTTIME has imported."""
    lines = [line for line in stderr.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in lines]


@pytest.mark.parametrize("command", slow_except(["train"], COMMANDS))
def test_help_loads_nothing_slow(shell, command):
    done = shell(command, "--help", env=TIMED, real=True)
    assert "hydra" in loaded(done.stderr)
    assert not (HEAVY | {"pydantic"}) & set(loaded(done.stderr))


def test_settings_are_checked_before_torch_is_loaded(shell):
    found = loaded(shell("train", "seed=-1", env=TIMED, real=True, status=2).stderr)
    assert "hydra" in found
    assert not HEAVY & set(found)


def test_a_prediction_loads_only_torch_and_what_reads_the_run(trained, folder_of, tmp_path):
    """From a run folder, a checkpoint, an export, and a run folder of an encoder-decoder."""
    folder, _ = trained("residual_pe")
    imdbattn.load(folder).export(tmp_path / "exported")
    code = """if True:
        import sys
        import imdbattn
        for place in sys.argv[1:]:
            print(imdbattn.load(place).predict("abc")[0].label)
        print(*sys.modules)"""
    places = [folder, folder / "checkpoints" / "last.ckpt", tmp_path / "exported"]
    places.append(folder_of("seq2seq_attention"))
    done = run_process(["-c", code, *map(str, places)], tmp_path, environment())
    *labels, modules = done.stdout.splitlines()
    assert len(labels) == len(places)
    slow = HEAVY - {"torch"} | {"hydra", "torchmetrics", "sklearn", "huggingface_hub"}
    assert not slow & set(modules.split())


def test_import_changes_nothing_in_the_process():
    """No environment variable, no resolver of OmegaConf, no handler, no sleeping."""
    code = """if True:
        import os, signal, time
        before, sleep = dict(os.environ), []
        time.sleep = sleep.append
        handlers = [*map(signal.getsignal, signal.valid_signals())]
        import imdbattn, imdbattn.train, imdbattn.launch.job_process, imdbattn.launch.sweep
        from omegaconf import OmegaConf
        print(before == dict(os.environ), sleep, OmegaConf.has_resolver("job_name"))
        print(handlers == [*map(signal.getsignal, signal.valid_signals())])"""
    done = run_process(["-c", code], ROOT, environment())
    assert done.stdout.split() == ["True", "[]", "False", "True"], done.stderr


IMPORTED = """
import os, sys, torch
used = []
for name in ("init", "is_available", "device_count", "_lazy_init"):
    setattr(torch.cuda, name, lambda *_, name=name: used.append(name))
from imdbattn.launch.composition import composed
from imdbattn.launch.hydra_config import plain_settings
from imdbattn.launch.job_process import import_for_training
from imdbattn.tasks.task import training_settings
import_for_training(training_settings(plain_settings(composed("train", sys.argv[1:]))))
threads = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print(used, len([name for name in threads if not name.startswith("jemalloc")]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_process_that_forks_has_no_threads_and_has_not_used_a_gpu():
    """Except those of OpenBLAS, which end before a fork, and of pyarrow, which begin again."""
    variables = environment({"OPENBLAS_NUM_THREADS": "1"})
    done = run_process(["-c", IMPORTED, "model=residual_pe", "logger=wandb"], ROOT, variables)
    assert done.stdout == "[] 1\n", done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the wheel unpacked, as pip would put it into site-packages."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    words = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    assert run_process(words, ROOT, environment()).returncode == 0
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def files_in(folder: Path) -> set[Path]:
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"]
    return {file.relative_to(folder) for file in files}


@pytest.mark.slow
def test_the_wheel_contains_conf_and_types_but_no_tests(site):
    assert (site / "imdbattn" / "py.typed").exists()
    assert (site / "imdbattn" / "conf" / "train.yaml").exists()
    assert not (site / "tests").exists()
    ours = files_in(ROOT / "imdbattn")
    assert ours <= files_in(site / "imdbattn")
    assert {file.suffix for file in ours} >= {".py", ".jinja", ".tsv", ".html", ".css", ".js"}
    assert files_in(site / "imdbattn" / "conf") == files_in(ROOT / "conf")


@pytest.mark.slow
def test_the_wheel_finds_its_configs_and_trains_a_few_steps_outside_of_the_repository(
    site, small, tmp_path
):
    code = "import imdbattn, imdbattn.train; print(imdbattn.__file__); imdbattn.train.main()"
    words = [*small, "model=residual_pe", "trainer.max_steps=3"]
    variables = environment({"PYTHONPATH": str(site)})
    done = run_process(["-P", "-c", code, *words], tmp_path, variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
    assert list(tmp_path.glob("runs/*/*/metrics.json"))
