"""What runs, comparisons and sweeps log in W&B, which is never a secret."""

import functools
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import wandb
import yaml

import imdbattn
from imdbattn.folders.run_folder import SWEEP_LOG
from imdbattn.report.comparison_page import write_comparison
from imdbattn.runs.fit import fit
from imdbattn.settings.command_settings import with_defaults
from imdbattn.settings.keys import conf_dir, flattened
from imdbattn.tracking import wandb_logger
from imdbattn.tracking.loggers import Tracker, logged_results
from tests.models import RUNGS
from tests.processes import environment
from tests.wandb_files import read_back, records, table

SECRETS = {
    "WANDB_API_KEY": "wandb0odd0key0" + "w" * 30,
    "AWS_SECRET_ACCESS_KEY": "aws/odd+secret=value",
    "HF_TOKEN": "hf_oddTokenValue123",
}


@pytest.fixture(scope="module")
def sweep(small, settings, tmp_path_factory):
    """Two runs and their comparison, logged offline in an environment with secrets: the folder of
    the second run, its metrics, what W&B has of it, the comparison, and what W&B has of that.
    """
    folder = tmp_path_factory.mktemp("sweep")
    (folder / SWEEP_LOG).touch()
    words = [*small, "logger=wandb", "trainer.max_epochs=2"]
    words += ["trainer.log_every_n_steps=1", "logger.wandb.table_rows=10"]
    words += ["logger.wandb.table_characters=20"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (SECRETS | {"WANDB_RUN_ID": "shared"}).items():
            patch.setenv(name, value)
        fit(settings(*words, "model=mean"), folder / "mean")
        drawn = settings(*words, "model=residual_pe", "pictures=true")
        metrics = fit(drawn, folder / "residual_pe")
        options = with_defaults("compare", runs=[folder])
        _, sets = write_comparison(options, folder / "comparison")
        ((compared, comparison),) = sets.items()
        Tracker(settings(*words).logger).publish_comparison(comparison, compared, "a-sweep")
    run = read_back(folder / "residual_pe")
    return folder / "residual_pe", metrics, run, comparison, read_back(compared)


def test_a_run_has_its_name_group_tags_config_and_results(sweep):
    _, metrics, found, *_ = sweep
    run = found.run
    assert (run.display_name, run.job_type) == ("residual_pe-s1", "train")
    assert run.run_group.endswith("-sweep0")
    assert run.run_id != "shared"
    assert set(run.tags) == {"residual_pe", "path", "ptb"}
    assert found.config["rung"] == found.config["model"]["name"] == "residual_pe"
    assert found.config["environment"]["versions"]["torch"]
    values = logged_results(metrics)
    assert values.keys() >= {"best/val_accuracy", "tokens_per_s", "parameters"}
    assert values["test/loss"] == metrics["test_loss"]
    assert values.items() <= found.summary.items()


CONVENTIONS = {
    "WANDB_NAME": "by hand",
    "WANDB_TAGS": "first,second",
    "WANDB_PROJECT": "course",
    "WANDB_RUN_GROUP": "of the shell",
}


def header_of(settings, folder: Path, *overrides: str):
    """The header of a run of a sweep with these settings, in the environment as it is."""
    folder.mkdir()
    (folder / "environment.json").write_text("{}")
    (folder.parent / SWEEP_LOG).touch()
    with Tracker(settings("logger=wandb", *overrides).logger) as tracker:
        tracker.start(folder, CONFIG, resume=False)
    return read_back(folder).run


def test_the_environment_of_wandb_counts_unless_a_setting_says_otherwise(
    settings, tmp_path, monkeypatch
):
    for name, value in CONVENTIONS.items():
        monkeypatch.setenv(name, value)
    run = header_of(settings, tmp_path / "shell")
    assert (run.display_name, run.project, run.run_group) == ("by hand", "course", "of the shell")
    assert set(run.tags) == {"first", "second"}
    words = ["name=b", "tags=[a,b]", "project=own", "group=g"]
    run = header_of(settings, tmp_path / "typed", *(f"logger.wandb.{word}" for word in words))
    assert (run.display_name, run.project, run.run_group) == ("b", "own", "g")
    assert set(run.tags) == {"a", "b"}
    for name in (*CONVENTIONS, "WANDB_MODE"):
        monkeypatch.setenv(name, "")
    run = header_of(settings, tmp_path / "empty", "logger.wandb.mode=offline")
    assert (run.display_name, run.project) == ("mean-s1", "imdbattn")


def test_confusion_matrix_predictions_picture_and_page_are_logged(sweep):
    folder, metrics, found, *_ = sweep
    counts = {(a, b): n for a, b, n in table(found, "test/confusion_matrix_table")["data"]}
    rows = [[counts[label, predicted] for predicted in ("neg", "pos")] for label in ("neg", "pos")]
    assert rows == metrics["test_confusion"] != [*zip(*rows, strict=True)]
    shown = table(found, "test/predictions")
    assert shown["columns"] == ["text", "label", "predicted", "probability"]
    assert len(shown["data"]) == 10
    assert all(len(text) <= 20 and label in ("neg", "pos") for text, label, *_ in shown["data"])
    assert found.summary["pictures/learning_curves"]["_type"] == "image-file"
    page = found.files / found.summary["pictures/page"]["path"]
    assert page.read_text() == (folder / "pictures" / "attention.html").read_text()


def check_nothing_private(folder: Path) -> None:
    """No secret in any file; and in what is sent, nothing of the machine."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    for file in files:
        content = file.read_bytes()
        for secret in SECRETS.values():
            assert secret.encode() not in content, file
    (sent,) = [file.read_bytes() for file in (folder / "wandb").glob("offline-run-*/*.wandb")]
    for ours in (sys.executable, "trainer=cpu"):  # where Python lies, and the command line
        assert ours.encode() not in sent, ours
    found = read_back(folder)
    assert not found.run.host
    assert not found.run.git.remote_url


def test_no_secret_and_nothing_of_the_machine_is_in_a_run_folder(sweep):
    check_nothing_private(sweep[0])


def test_what_is_logged_between_two_epochs_is_drawn_over_steps(sweep):
    """W&B would draw it at the last epoch that was logged."""
    (file,) = sweep[0].glob("wandb/offline-run-*/run-*.wandb")
    rows = [
        {name for item in record.history.item for name in item.nested_key or [item.key]}
        for record in records(file)
        if record.HasField("history")
    ]
    of_steps = [row for row in rows if row & {"train/loss_step", "lr-Muon"}]
    assert len(of_steps) > 2
    assert all("trainer/global_step" in row and "epoch" not in row for row in of_steps)


def test_a_comparison_is_a_separate_run_in_the_group_of_the_sweep(sweep):
    *_, comparison, found = sweep
    assert (found.run.display_name, found.run.job_type) == ("comparison", "comparison")
    assert found.run.run_group == "a-sweep"
    assert found.config["fingerprint"] == comparison["fingerprint"]
    variants = table(found, "comparison/variants")
    means = [variant["test"]["mean"] for variant in comparison["variants"]]
    assert [line[variants["columns"].index("test")] for line in variants["data"]] == means
    (pair,) = comparison["pairs"]
    pairs = table(found, "comparison/pairs")
    shown = dict(zip(pairs["columns"], pairs["data"][0], strict=True))
    assert (shown["from"], shown["difference"]) == (pair["from"], pair["difference"])
    assert (shown["low"], shown["high"]) == pair["interval"]
    page = found.files / found.summary["comparison/page"]["path"]
    assert "residual_pe against mean" in page.read_text()


def test_every_panel_of_the_dashboard_shows_a_quantity_that_runs_log(sweep, shell, tmp_path):
    """Written without an account."""
    pytest.importorskip("wandb_workspaces")
    out = tmp_path / "a, folder" / "w.json"
    words = ["dry_run=true", "group=Ann's sweep, 2nd", "by=model.net.layers", f"out={out}"]
    done = shell("dashboard", *words, env={"WANDB_API_KEY": None, "NETRC": "/nowhere"})
    assert done.stdout == f"dashboard: {out}\n"
    sections = json.loads(out.read_text())["spec"]["section"]["panelBankConfig"]["sections"]
    panels = [panel for section in sections for panel in section["panels"]]
    quantity = r"(?:train|val|test|best|pictures|comparison)/\w+|train_seconds|parameters|epoch"
    asked = set(re.findall(rf'"(?:summary:)?({quantity})"', json.dumps(panels)))
    _, _, run, _, compared = sweep
    assert asked <= run.logged | run.summary.keys() | compared.summary.keys()
    assert asked >= {"val/accuracy", "test/accuracy", "train_seconds", "pictures/attention"}
    # W&B has learning rates by step, without an epoch
    axes = {panel["config"].get("metricRegex"): panel["config"].get("xAxis") for panel in panels}
    assert axes["lr-.*"] == "trainer/global_step"


def test_a_run_of_the_program_that_trains_stays_active_and_receives_nothing(
    small, tmp_path, monkeypatch
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    quiet = wandb.Settings(silent=True, console="off")
    own = wandb.init(project="own", dir=str(tmp_path), settings=quiet)
    try:
        words = [*small, "logger=wandb", "model=mean", "trainer.max_epochs=1"]
        imdbattn.train(*words, folder=tmp_path / "run")
        assert wandb.run is own
        own.log({"x": 1})
        assert {key for key in dict(own.summary) if not key.startswith("_")} == {"x"}
        assert len(list((tmp_path / "run").glob("wandb/offline-run-*"))) == 1
    finally:
        own.finish()


CONFIG = {"seed": 1, "model": {"name": "mean"}, "data": {"source": "packaged", "tokenizer": "ptb"}}
SWEEPS = {
    file.stem: yaml.safe_load(file.read_text())
    for file in (conf_dir() / "wandb_sweep").glob("*.yaml")
}


def first_choice(parameter: dict):
    return parameter["values"][0] if "values" in parameter else parameter["min"]


def agents_command(sweep: dict) -> list[str]:
    """The command that W&B's agent makes of a sweep and its first choice of parameters."""
    chosen = [f"{name}={first_choice(values)}" for name, values in sweep["parameters"].items()]
    macros = {"${env}": ["/usr/bin/env"], "${interpreter}": ["python"]}
    macros |= {"${program}": [sweep["program"]], "${args_no_hyphens}": chosen}
    return [part for word in sweep["command"] for part in macros.get(word, [word])]


@pytest.mark.parametrize("name", SWEEPS)
def test_the_parameters_of_a_sweep_are_settings_with_valid_values(settings, name):
    """And its metric is one that a run logs each epoch."""
    sweep = SWEEPS[name]
    fixed = [word for word in sweep["command"] if "=" in word and "${" not in word]
    known = flattened(settings(*fixed).dump()) | {"model": None}
    assert sweep["parameters"].keys() <= known.keys()
    for choice in (0, -1):
        chosen = [
            f"{name}={choices.get('values', [choices.get('min'), choices.get('max')])[choice]}"
            for name, choices in sweep["parameters"].items()
        ]
        settings(*fixed, *chosen)
    assert sweep["metric"] == {"name": "val/accuracy", "goal": "maximize"}


def test_the_sweep_of_the_ladder_has_the_rungs_of_its_experiment():
    assert SWEEPS["ladder"]["parameters"]["model"]["values"] == [*RUNGS]


@pytest.mark.slow
def test_the_command_of_an_agent_trains_one_run_of_the_sweep(small, tmp_path):
    """In the environment of an agent, whose file of parameters locks them in W&B."""
    sweep, words = SWEEPS["tune"], agents_command(SWEEPS["tune"])
    chosen = {key: {"value": first_choice(values)} for key, values in sweep["parameters"].items()}
    (tmp_path / "parameters.yaml").write_text(yaml.safe_dump({"wandb_version": 1, **chosen}))
    words += [*small, "logger=wandb", "model.net.layers=1", "trainer.max_epochs=2"]
    env = SECRETS | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "WANDB_SWEEP_ID": "sweep1",
        "WANDB_RUN_ID": "run1",
        "WANDB_SWEEP_PARAM_PATH": f"{tmp_path}/parameters.yaml",
    }
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(env), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "wandb-sweep1" / "residual_pe-s1-run1"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert "test_accuracy" not in metrics
    found = read_back(folder)
    assert found.summary.get("test/accuracy") == metrics.get("test_accuracy")
    check_nothing_private(folder)
    run = found.run
    assert (run.sweep_id, run.run_id, run.run_group) == ("sweep1", "run1", "sweep1")
    assert flattened(found.config)["model.name"] == "residual_pe", (
        "the sweep's `model` must not hide the settings of that name"
    )
    assert sweep["metric"]["name"] in found.logged


@pytest.fixture
def nobody(monkeypatch, tmp_path):
    """A user without a W&B account."""
    wandb.teardown()  # else $WANDB_SERVICE, which is restored, would name a service that has ended
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    return monkeypatch


def test_it_is_online_only_with_a_key_and_a_server(nobody, settings, tmp_path, caplog):
    quick = "logger.wandb.timeout=1"
    assert header_of(settings, tmp_path / "no key", "logger.wandb.mode=online").run_group
    assert "no W&B key is configured for https://" in caplog.text
    nobody.setenv("WANDB_MODE", "disabled")
    assert wandb_logger.mode_with_key(None) == "disabled"
    nobody.delenv("WANDB_MODE")
    nobody.setenv("WANDB_API_KEY", "k" * 40)
    nobody.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert header_of(settings, tmp_path / "no server", quick).run_group
    assert "W&B (online) did not start" in caplog.text
    nobody.setenv("WANDB_MODE", "shared")
    assert header_of(settings, tmp_path / "shared", quick).run_group
    assert "W&B (shared) did not start" in caplog.text


def test_what_the_commands_of_wandb_have_set_counts(nobody, tmp_path):
    def typed(*words: str) -> str:
        subprocess.run([sys.executable, "-m", "wandb", *words], check=True, capture_output=True)
        return wandb_logger.mode_with_key(None)

    nobody.chdir(tmp_path)
    assert typed("login", "--no-verify", "k" * 40) == "online"
    netrc = tmp_path / "none"  # as earlier versions of W&B have written it
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {'k' * 40}\n")
    assert wandb_logger.mode_with_key(None) == "online"
    nobody.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert wandb_logger.mode_with_key(None) == "offline", "W&B would ask for a key of this server"
    nobody.delenv("WANDB_BASE_URL")
    netrc.unlink()
    assert wandb_logger.mode_with_key(None) == "offline"
    assert typed("login", "--no-verify", "--host", "http://127.0.0.1:9", "k" * 40) == "online"
    assert wandb_logger.wandb_account().base_url == "http://127.0.0.1:9"
    assert typed("offline") == "offline"
    assert wandb_logger.mode_with_key("online") == "online"


class BusyServer(BaseHTTPRequestHandler):
    """A W&B server that lets runs begin, and answers nothing else."""

    def do_POST(self) -> None:
        if b"upsertBucket" not in self.rfile.read(int(self.headers["Content-Length"])):
            threading.Event().wait()
        project = {"id": "p", "name": "imdbattn", "entity": {"id": "e", "name": "someone"}}
        bucket = {"id": "r", "name": "run", "config": "{}", "project": project}
        answer = {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


def test_the_command_that_uploads_an_incomplete_run_is_printed(nobody, settings, tmp_path, caplog):
    server = ThreadingHTTPServer(("127.0.0.1", 0), BusyServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    nobody.setenv("WANDB_API_KEY", "k" * 40)
    nobody.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    words = ["logger=wandb", "+logger.wandb.settings={finish_timeout: 1}"]
    (tmp_path / "environment.json").write_text("{}")
    with Tracker(settings(*words).logger) as tracker:
        tracker.start(tmp_path, CONFIG, resume=False)
    server.shutdown()
    sync = re.escape(f"wandb sync --include-online {os.path.relpath(tmp_path)}/wandb/*run-*-")
    assert re.search(rf"W&B did not finish: .*`{sync}\w+` uploads its files", caplog.text)


def test_a_run_without_an_account_leaves_an_offline_run_and_all_results(
    nobody, shell, small, tmp_path
):
    arguments = [*small, "logger=wandb", "model=mean", "trainer.max_epochs=1"]
    done = shell("train", *arguments, cwd=tmp_path, env={"WANDB_MODE": None})
    (metrics,) = tmp_path.rglob("metrics.json")
    assert list(metrics.parent.glob("wandb/offline-run-*/run-*.wandb"))
    assert "upload it with:  wandb sync runs/" in done.stdout


def test_wandb_that_fails_does_not_stop_training(settings, small, tmp_path, monkeypatch, caplog):
    @functools.wraps(wandb.init)  # whose arguments are checked
    def init(**_):
        raise wandb.errors.CommError("server\nin flames")

    monkeypatch.setattr(wandb, "init", init)
    metrics = fit(settings(*small, "logger=wandb", "model=mean", "trainer.max_epochs=1"), tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics
    assert "server in flames" in caplog.text


def committed(folder: Path) -> None:
    """A git repository with a remote that has a password, and a change that is not committed."""
    folder.mkdir()
    (folder / "code.py").write_text("one = 1\n")
    who = ["-c", "user.name=n", "-c", "user.email=a@b.c"]
    remote = "https://user:remote0password@example.org/private.git"
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
    subprocess.run(["git", "remote", "add", "origin", remote], cwd=folder, check=True)
    (folder / "code.py").write_text("one = 1\ntwo = 2\n")


@pytest.mark.parametrize("asked", [False, True])
def test_notes_and_changes_are_sent_only_if_asked(settings, small, tmp_path, monkeypatch, asked):
    """And never the password of the remote."""
    committed(tmp_path / "code")
    monkeypatch.chdir(tmp_path / "code")
    words = [*small, "logger=wandb", "model=mean", "trainer.max_epochs=1"]
    notes = ["notes=a first try", "git=true"] if asked else []
    words += [f"logger.wandb.{word}" for word in notes]
    fit(settings(*words), tmp_path / "run")
    found = read_back(tmp_path / "run")
    assert found.run.notes == ("a first try" if asked else "")
    assert (found.run.git.remote_url == "https://user:@example.org/private.git") == asked
    assert bool(found.run.git.commit) == asked
    patch = found.files / "diff.patch"
    assert patch.exists() == asked
    if asked:
        assert "+two = 2" in patch.read_text()
    sent = next((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert b"remote0password" not in sent.read_bytes()
