"""Logs the results of a finished run, and of a comparison, to W&B. A failure causes only a warning.

Shape suffix: N items of a split.
"""

import logging
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger

from imdbattn.errors import only_warning
from imdbattn.runs.run_folder import SPLIT_FILES
from imdbattn.tasks.per_class import short_name
from imdbattn.tracking.wandb_run import finish_wandb, start_wandb

log = logging.getLogger(__name__)

SCORES = ("accuracy", "loss", "bleu", "macro_f1", "largest_class")
VALUES = {  # name in W&B -> name in metrics.json
    **{f"best/val_{name}": f"val_{name}" for name in SCORES},
    **{f"test/{name}": f"test_{name}" for name in SCORES},
    **{name: name for name in ("parameters", "train_seconds", "epoch_seconds", "tokens_per_s")},
}


def publish_run(run: Any, folder: Path, metrics: Mapping[str, Any]) -> None:
    """Logs the results in a run folder to its W&B run, unless that is None.

    These are the best validation and test values, a confusion matrix, a table of predictions, the
    pictures, and with logger.artifacts the model.
    """
    if run is None:
        return
    with only_warning(log, "W&B: best values were not logged"):
        # Not as curves of one point. The metric may be a function of one's own.
        chosen = short_name(run.config.get("choose_by", "accuracy"))
        run.summary.update(values_of(metrics, chosen))
    with only_warning(log, "W&B: predictions were not logged"):
        run.log(predictions(folder, metrics, run.config["logger"]))
    with only_warning(log, "W&B: pictures were not logged"):
        log_media(run, "pictures", folder / "pictures", folder / "pictures" / "attention.html")
    if run.config["logger"].get("artifacts"):
        send_model(run, folder, run.config.get("trust"))


def send_changes(run: Any) -> None:
    """Sends the uncommitted changes of the git repository in the current folder as diff.patch.

    W&B itself sends commit and remote, without a password in it.
    """
    with only_warning(log, "W&B: changes were not sent"):
        command = ["git", "diff", "HEAD"]
        patch = subprocess.run(command, capture_output=True, check=True).stdout
        Path(run.dir, "diff.patch").write_bytes(patch)
        run.save(str(Path(run.dir, "diff.patch")), base_path=run.dir)


def send_model(run: Any, folder: Path, trust: Any) -> None:
    """Uploads the exported best model of a run folder as an artifact."""
    import wandb

    with only_warning(log, "W&B: the model was not uploaded"):
        from imdbattn.runs.run import Run
        from imdbattn.tasks.predictor import load
        from imdbattn.tools.export.folder import write_export

        opened = Run(folder, trust)
        with TemporaryDirectory() as temporary:
            place = Path(temporary, "model")
            write_export(load(opened.settings, opened.checkpoint), place, folder)
            artifact = wandb.Artifact(f"{run.name}-{run.id}", type="model")
            artifact.add_dir(str(place))
            run.log_artifact(artifact)


def values_of(metrics: Mapping[str, Any], chosen: str = "accuracy") -> dict[str, Any]:
    """Returns the best validation and test values, and the speed, by their names in W&B.

    chosen: the metric of choose_by, by its name in metrics.json.
    """
    names = VALUES | {f"best/val_{chosen}": f"val_{chosen}", f"test/{chosen}": f"test_{chosen}"}
    return {name: metrics[key] for name, key in names.items() if key in metrics}


def publish_comparison(
    comparison: Mapping[str, Any], out: Path, logger_settings: Any, group: str | None
) -> None:
    """Log a comparison as a W&B run named `comparison`, if the logger is W&B.

    out: folder of its comparison.html and figures/*.png. group: in W&B, unless the settings have
    one.
    """
    if logger_settings.name != "wandb":
        return
    config = {
        key: comparison[key] for key in ("split", "test_set", "fingerprint", "reviews", "method")
    }
    with only_warning(log, "W&B: the results of the comparison were not logged"):
        run = start_wandb(
            logger_settings, out, config, "comparison", "comparison", ["comparison"], group
        )
        if run is None:
            return
        try:
            run.log(
                {
                    f"comparison/{name}": table
                    for name, table in comparison_tables(comparison).items()
                }
            )
            log_media(run, "comparison", out / "figures", out / "comparison.html")
        finally:
            finish_wandb(run)


def predictions(
    folder: Path, metrics: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """A confusion matrix (classifiers only) and a table of predictions, of test or else of
    validation.
    """
    import pandas as pd
    import wandb

    # predictions.parquet holds counts only
    if metrics.get("starts_model"):
        return {}
    split, prefix = ("test", "test") if "test_accuracy" in metrics else ("validation", "val")
    scores, texts = (pd.read_parquet(folder / name) for name in SPLIT_FILES[split])
    scores = scores.merge(texts, "left", "row")  # scores may cover a part of the split
    media: dict[str, Any] = {}
    columns = ["source", "reference", "output", "probability"]
    if "labels" in metrics:
        columns, names = (
            ["text", "label", "predicted", "probability"],
            np.array(metrics["labels"], str),
        )
        media[f"{prefix}/confusion_matrix"] = wandb.plot.confusion_matrix(
            y_true=scores["label"],
            preds=scores["predicted"],
            class_names=[*names],
            title=f"Confusion, {split}",
        )
        scores = scores.assign(right=scores["label"] == scores["predicted"])
        scores = scores.assign(label=names[scores["label"]], predicted=names[scores["predicted"]])
    chosen = rows_to_show(
        scores["right"].to_numpy(), scores["probability"].to_numpy(), settings["table_rows"]
    )
    shown = scores.iloc[chosen][["text", "label", "predicted", "probability"]].set_axis(
        columns, axis=1
    )
    if len(shown):
        shown[columns[:3]] = shown[columns[:3]].map(
            lambda text: text[: settings["table_characters"]]
        )
        media[f"{prefix}/predictions"] = wandb.Table(dataframe=shown)
    return media


def log_histograms(
    loggers: Iterable[Logger], shares: Mapping[str, np.ndarray], place: Mapping[str, int]
) -> None:
    """Logs a histogram of shares (0 to 1) for each name, to W&B and TensorBoard.

    place: epoch and step, as Lightning logs them to W&B.
    """
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            import wandb

            edges = np.linspace(0, 1, 21)
            counted = {
                f"attention_queries/{name}": wandb.Histogram(np_histogram=np.histogram(one, edges))
                for name, one in shares.items()
            }
            with only_warning(log, "W&B: histograms were not logged"):
                logger.experiment.log({**counted, **place})
        elif isinstance(logger, TensorBoardLogger):
            for name, one in shares.items():
                step = place["trainer/global_step"]
                logger.experiment.add_histogram(f"attention_queries/{name}", one, step)


def rows_to_show(right_N: np.ndarray, probability_N: np.ndarray, count: int) -> list[int]:
    """Indices of `count` items: up to half are the most confident mistakes, then correct ones of
    all confidences.

    With too few of one kind there are more of the other.
    """
    order = np.argsort(-probability_N, kind="stable")
    right, wrong = order[right_N[order]], order[~right_N[order]]
    wrong = wrong[: max(count // 2, count - len(right))]
    spread = np.linspace(0, len(right) - 1, min(count - len(wrong), len(right))).round().astype(int)
    return [*wrong.tolist(), *right[spread].tolist()]


def log_media(run: Any, name: str, images: Path, page: Path) -> None:
    """Log the PNG files of a folder, and a page, which loads nothing and in which reviews are
    escaped.
    """
    import wandb

    media: dict[str, Any] = {
        f"{name}/{file.stem}": wandb.Image(str(file)) for file in sorted(images.glob("*.png"))
    }
    if page.exists():
        media[f"{name}/page"] = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
    if media:
        run.log(media)


def comparison_tables(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of the rungs and of the differences between them."""
    import pandas as pd
    import wandb

    from imdbattn.report.comparison import as_rows  # not for runs

    rows = {name: as_rows(comparison[name]) for name in ("rungs", "pairs")}
    return {name: wandb.Table(dataframe=pd.DataFrame(some)) for name, some in rows.items() if some}
