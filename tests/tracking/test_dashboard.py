"""The dashboard shows what runs log, and can be written without an account."""

import copy
import csv
import json
import re

import pytest

from imdbattn.report.comparison_page import report_of
from imdbattn.tracking.loggers import logged_results
from imdbattn.tracking.wandb_media import (
    comparison_tables,
    pictures_and_page,
    predictions_as_media,
)
from tests.made_up import made_up

COMPARISON = made_up(("base", "residual layers=6"))

KEY = r"(?:train|val|test|best|pictures|comparison)/\w+|train_seconds|parameters|epoch"
OVER_TIME = copy.deepcopy(COMPARISON)
for rung in OVER_TIME["rungs"]:
    rung["curves"]["entropy/layer1"] = rung["curves"]["val/accuracy"]
NOBODY = {"WANDB_API_KEY": None, "NETRC": "/nowhere", "WANDB_BASE_URL": None}


@pytest.fixture(scope="module")
def written(shell, tmp_path_factory) -> dict:
    """What `dry_run=true` writes, by a user without an account."""
    pytest.importorskip("wandb_workspaces")
    folder = tmp_path_factory.mktemp("a, folder")
    arguments = (
        "dry_run=true",
        "group=Ann's sweep, 2nd",
        "by=model.net.layers",
        f"out={folder}/w.json",
    )
    done = shell("dashboard", *arguments, env=NOBODY)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"dashboard: {folder}/w.json\n"
    return json.loads((folder / "w.json").read_text())


def panels(found: dict) -> list[dict]:
    return [
        panel
        for section in found["spec"]["section"]["panelBankConfig"]["sections"]
        for panel in section["panels"]
    ]


def test_every_panel_shows_a_quantity_that_runs_log(written, trained, tmp_path, monkeypatch):
    import wandb

    folder, metrics = trained("residual_pe")
    with (folder / "metrics.csv").open(newline="") as file:
        logged = set(next(csv.reader(file)))  # Lightning sends the same to all loggers
    (tmp_path / "pictures").mkdir()
    files = ("learning_curves.png", "positions.png", "attention.png", "attention_entropy.png")
    for name in (*files, "attention.html"):
        (tmp_path / "pictures" / name).touch()
    for file in folder.glob("*.parquet"):
        (tmp_path / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr(wandb, "Image", str)
    media = predictions_as_media(tmp_path, metrics, rows=5, characters=50)
    for name, value in media.items():
        if type(value).__name__ == "CustomChart":
            logged.add(f"{name}_table")  # where W&B keeps a chart's numbers, see test_wandb.py
    pictures = tmp_path / "pictures"
    logged.update(media, pictures_and_page("pictures", pictures, pictures / "attention.html"))
    logged.update(logged_results(metrics), comparison_tables(COMPARISON))
    shown = [picture.name for one in report_of(OVER_TIME).sections for picture in one.pictures]
    logged |= {f"comparison/{name}" for name in (*shown, "page")}
    asked = set(re.findall(rf'"(?:summary:)?({KEY})"', json.dumps(panels(written))))
    assert asked <= logged, asked - logged
    assert {
        "val/accuracy",
        "test/accuracy",
        "train_seconds",
        "pictures/attention",
        "test/predictions",
    } <= asked
    # W&B has learning rates by step, without an epoch
    axes = {one["config"].get("metricRegex"): one["config"].get("xAxis") for one in panels(written)}
    assert axes["lr-.*"] == "trainer/global_step"
