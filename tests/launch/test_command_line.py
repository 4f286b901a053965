"""Wrong settings give one clear line and a non-zero exit status; help lists the choices."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.models import RUNGS


def test_a_wrong_value_gives_one_line_and_an_exit_status(shell):
    done = shell("train", "seed=-1", status=2)
    assert done.stderr == "error: seed=-1 must be greater than or equal to 0\n"
    done = shell("train", "epochs=2", status=2)
    message = "error: there is no setting epochs; the nearest is trainer.max_epochs"
    assert done.stderr.startswith(message)


@pytest.fixture(scope="module")
def help_text(shell, tmp_path_factory):
    """What imdbattn.train prints with --help, in a folder with settings of one's own."""
    folder = tmp_path_factory.mktemp("help")
    (folder / "conf" / "experiment").mkdir(parents=True)
    own = "# @package _global_\nlabel_smoothing: 0.125\n"
    (folder / "conf" / "experiment" / "mine.yaml").write_text(own)
    words = ("experiment=mine", "--config-dir", "conf", "seed=2")
    done = shell("train", *words, "--help", cwd=folder)
    return done.stdout


def test_help_lists_the_choices(help_text):
    for word in (*RUNGS, "wandb", "imdbattn-train -m", "run=<run folder>"):
        assert word in help_text, word
    assert "== Configuration groups ==" not in help_text


def test_help_knows_a_folder_of_settings_of_ones_own(help_text):
    assert re.search("label_smoothing: 0.125  *# label smoothing of", help_text)


def test_help_explains_each_setting(help_text):
    settings = help_text.partition("Settings and their defaults:")[2]
    values = re.findall(r"^ *\w+: .*", settings, re.M)
    assert len(values) > 60
    assert "at the top of the schedule" in " ".join(settings.replace("#", "").split())
    assert not [line for line in values if "  # " not in line and "_partial_" not in line]


def test_quotes_within_an_argument_are_those_of_hydra(shell, trained, tmp_path):
    """A value in quotes is what stands between them."""
    run = f"run={trained('mean')[0]}"
    texts = {'"good, film"': "good, film", 'a "good" film': 'a "good" film', "${a}": "${a}"}
    for typed, read in texts.items():
        done = shell("predict", run, f"text={typed}", cwd=tmp_path)
        assert done.stdout.endswith(f"%  {read}\n"), done.stderr


def test_the_home_of_a_user_is_found_in_the_folder_to_resume(shell, trained, tmp_path):
    shutil.copytree(trained("mean")[0], tmp_path / "run")
    (tmp_path / "work").mkdir()
    home = {"HOME": str(tmp_path)}
    done = shell("train", "resume=~/run", cwd=tmp_path / "work", env=home)
    assert "This run is already finished" in done.stdout
    assert not [*(tmp_path / "work").iterdir()]


def test_a_command_ends_without_a_message_when_its_reader_has_ended():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as stdout:
        command = [sys.executable, "-m", "imdbattn.compare", "--help"]
        # Python buffers what it prints, as it does unless it is told otherwise
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, env=environment
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
