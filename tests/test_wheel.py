"""The installed wheel, outside of the repository, finds its configs and trains a few steps."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the wheel unpacked, as pip would put it into site-packages."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_contains_conf_and_types_but_no_tests(site):
    assert (site / "imdbattn" / "py.typed").exists()
    assert (site / "imdbattn" / "conf" / "train.yaml").exists()
    assert not (site / "tests").exists()
    package = ROOT / "imdbattn"
    files = {file.relative_to(package) for file in package.rglob("*") if file.is_file() and file.suffix != ".pyc"}
    assert {file for file in files if not (site / "imdbattn" / file).exists()} == set()
    assert {file.suffix for file in files} >= {".py", ".jinja", ".tsv", ".html", ".css", ".js"}
    shipped = {file.relative_to(site / "imdbattn/conf") for file in (site / "imdbattn/conf").rglob("*.yaml")}
    assert shipped == {file.relative_to(ROOT / "conf") for file in (ROOT / "conf").rglob("*.yaml")}


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_wheel_finds_its_configs_and_trains_a_few_steps_outside_of_the_repository(site, small, tmp_path, trains):
    command = "import sys; from imdbattn.train import main; import imdbattn; print(imdbattn.__file__); main()"
    words = [*small, "model=residual_pe", "trainer.max_steps=3"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", command, *words, *([] if trains else ["--cfg", "job"])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
    assert ("name: residual_pe" in done.stdout) is not trains
    assert bool(list(tmp_path.glob("runs/*/*/metrics.json"))) is trains
