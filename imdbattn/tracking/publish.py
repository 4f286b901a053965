"""Logs the results of a finished run, and of a comparison, to W&B. A failure causes only a warning.

Shape suffix: N items of a split.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from imdbattn.errors import only_warning
from imdbattn.folders.run_folder import SPLIT_FILES
from imdbattn.settings.keys import Plain
from imdbattn.tracking.wandb_run import finish_wandb, start_wandb

if TYPE_CHECKING:
    import pandas as pd
    import wandb

    from imdbattn.report.content import ComparedSet

log = logging.getLogger(__name__)


def publish_run(
    run: wandb.Run,
    folder: Path,
    metrics: Plain,
    values: Mapping[str, float],
    rows: int,
    characters: int,
) -> None:
    """Logs the results in a run folder to its W&B run.

    These are the best validation and test values, a confusion matrix, a table of predictions with
    at most `rows` rows and `characters` characters of a text, and the pictures.
    """
    with only_warning(log, "W&B: best values were not logged"):
        run.summary.update(dict(values))  # not as curves of one point
    with only_warning(log, "W&B: predictions were not logged"):
        run.log(predictions_as_media(folder, metrics, rows, characters))
    with only_warning(log, "W&B: pictures were not logged"):
        log_media(run, "pictures", folder / "pictures", folder / "pictures" / "attention.html")


def send_changes(run: wandb.Run) -> None:
    """Sends the uncommitted changes of the git repository in the current folder as diff.patch.

    W&B itself sends commit and remote, without a password in it.
    """
    with only_warning(log, "W&B: changes were not sent"):
        command = ["git", "diff", "HEAD"]
        patch = subprocess.run(command, capture_output=True, check=True).stdout
        Path(run.dir, "diff.patch").write_bytes(patch)
        run.save(str(Path(run.dir, "diff.patch")), base_path=run.dir)


def send_model(run: wandb.Run, folder: Path, trust: str | list[str] | None) -> None:
    """Uploads the exported best model of a run folder as an artifact."""
    import wandb

    with only_warning(log, "W&B: the model was not uploaded"):
        from imdbattn.exports.folder import write_export
        from imdbattn.folders.run import Run
        from imdbattn.tasks.task import settings_of
        from imdbattn.tasks.weights import predictor_of

        opened = Run(folder, trust)
        with TemporaryDirectory() as temporary:
            model = Path(temporary, "model")
            write_export(predictor_of(settings_of(opened), opened.checkpoint), model, folder)
            artifact = wandb.Artifact(f"{run.name}-{run.id}", type="model")
            artifact.add_dir(str(model))
            run.log_artifact(artifact)


def publish_comparison(
    comparison: ComparedSet, out: Path, settings: Mapping[str, Any], group: str | None
) -> None:
    """Logs a comparison as a W&B run named `comparison`.

    Args:
        out: the folder of its comparison.html and figures/*.png.
        settings: the settings in conf/logger/wandb.yaml.
        group: the group of the run, unless the settings or the environment have another.
    """
    config = {
        "split": comparison["split"],
        "test_set": comparison["test_set"],
        "fingerprint": comparison["fingerprint"],
        "reviews": comparison["reviews"],
        "largest_class": comparison["largest_class"],
        "method": comparison["method"],
    }
    with only_warning(log, "W&B: the results of the comparison were not logged"):
        own = {**settings, "name": "comparison", "job_type": "comparison"}
        run = start_wandb(own, out, config, run_group=group, run_tags=["comparison"])
        if run is None:
            return
        try:
            tables = comparison_tables(comparison)
            run.log({f"comparison/{name}": table for name, table in tables.items()})
            log_media(run, "comparison", out / "figures", out / "comparison.html")
        finally:
            finish_wandb(run)


def predictions_as_media(
    folder: Path, metrics: Plain, rows: int, characters: int
) -> dict[str, object]:
    """Returns a confusion matrix (classifiers only) and a table of predictions of a run."""
    import pandas as pd
    import wandb

    # of a pretraining predictions.parquet holds counts only
    if metrics.get("starts_model"):
        return {}
    split, prefix = ("test", "test") if "test_accuracy" in metrics else ("validation", "val")
    predicted, texts = (pd.read_parquet(folder / name) for name in SPLIT_FILES[split])
    scores = predicted.merge(texts, "left", "row")  # perhaps of a part of the split
    shown = table_of_predictions(scores, metrics, rows, characters)
    media: dict[str, object] = {}
    if len(shown):
        media[f"{prefix}/predictions"] = wandb.Table(dataframe=shown)
    if "labels" in metrics:
        media[f"{prefix}/confusion_matrix"] = wandb.plot.confusion_matrix(
            y_true=scores["label"],
            preds=scores["predicted"],
            class_names=[*map(str, metrics["labels"])],
            title=f"Confusion, {split}",
        )
    return media


def table_of_predictions(
    scores: pd.DataFrame, metrics: Plain, rows: int, characters: int
) -> pd.DataFrame:
    """Returns a table of some predictions, half of them the most confident mistakes.

    Args:
        scores: the predictions, with their texts.
        rows: the largest number of rows.
        characters: the largest number of characters of a text.
    """
    columns = ["text", "label", "predicted", "probability"]
    if "labels" in metrics:
        names = np.array(metrics["labels"], str)
        scores = scores.assign(right=scores["label"] == scores["predicted"])
        scores = scores.assign(label=names[scores["label"]], predicted=names[scores["predicted"]])
    chosen = rows_to_show(scores["right"].to_numpy(), scores["probability"].to_numpy(), rows)
    shown = scores.iloc[chosen][columns]
    return shown.assign(**{name: shown[name].str[:characters] for name in columns[:3]})


def rows_to_show(right_N: np.ndarray, probability_N: np.ndarray, count: int) -> list[int]:
    """Returns the indices of `count` items: up to half are the most confident mistakes, then
    correct ones of all confidences.

    With too few of one kind there are more of the other.
    """
    order = np.argsort(-probability_N, kind="stable")
    right = order[right_N[order]]
    wrong = order[~right_N[order]]
    wrong = wrong[: max(count // 2, count - len(right))]
    rest = min(count - len(wrong), len(right))
    spread = np.linspace(0, len(right) - 1, rest).round().astype(int)
    return [*wrong.tolist(), *right[spread].tolist()]


def log_media(run: wandb.Run, name: str, images: Path, page: Path) -> None:
    """Logs the PNG files of a folder, and a page, which contains no scripts."""
    import wandb

    media: dict[str, object] = {}
    for file in sorted(images.glob("*.png")):
        media[f"{name}/{file.stem}"] = wandb.Image(str(file))
    if page.exists():
        media[f"{name}/page"] = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
    if media:
        run.log(media)


def comparison_tables(comparison: ComparedSet) -> dict[str, wandb.Table]:
    """Returns tables of the rungs and of the differences between them."""
    import pandas as pd
    import wandb

    from imdbattn.report.comparison import as_rows  # not for runs

    tables = {}
    rows = {"rungs": as_rows(comparison["rungs"]), "pairs": as_rows(comparison["pairs"])}
    for name, entries in rows.items():
        if entries:
            tables[name] = wandb.Table(dataframe=pd.DataFrame(entries))
    return tables
