"""What W&B shows of a finished run and of a comparison: tables, a confusion matrix, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import wandb

from imdbattn.folders.run import Run
from imdbattn.folders.run_folder import SPLIT_FILES
from imdbattn.settings.keys import NestedDict

if TYPE_CHECKING:
    from imdbattn.report.comparison_types import ComparedSet


def predictions_as_media(
    folder: Path, metrics: NestedDict, rows: int, characters: int
) -> dict[str, object]:
    """Returns a confusion matrix (classifiers only) and a table of predictions of a run."""
    # After pretraining, predictions.parquet contains only counts.
    if metrics.get("next_model"):
        return {}
    split, prefix = ("test", "test") if "test_accuracy" in metrics else ("validation", "val")
    predicted, texts = map(Run(folder).table, SPLIT_FILES[split])
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
    scores: pd.DataFrame, metrics: NestedDict, rows: int, characters: int
) -> pd.DataFrame:
    """Returns a table of some predictions: up to half are the most confident mistakes, the rest are
    correct ones of all confidences. If one kind has too few, there are more of the other.

    Args:
        scores: the predictions, with their texts.
        rows: the largest number of rows.
        characters: the largest number of characters of a text.
    """
    if "labels" in metrics:
        names = np.array(metrics["labels"], str)
        scores = scores.assign(right=scores["label"] == scores["predicted"])
        scores = scores.assign(label=names[scores["label"]], predicted=names[scores["predicted"]])
    scores = scores.sort_values("probability", ascending=False, kind="stable")
    right, wrong = scores[scores["right"]], scores[~scores["right"]]
    wrong = wrong.head(max(rows // 2, rows - len(right)))
    rest = min(rows - len(wrong), len(right))
    of_all_confidences = np.linspace(0, len(right) - 1, rest).round().astype(int)
    texts = ["text", "label", "predicted"]
    shown = pd.concat([wrong, right.iloc[of_all_confidences]])[[*texts, "probability"]]
    return shown.assign(**{name: shown[name].str[:characters] for name in texts})


def pictures_and_page(name: str, images: Path, page: Path) -> dict[str, object]:
    """Returns the PNG files in a folder, and a page, which contains no scripts, as `name`/..."""
    media: dict[str, object] = {}
    for file in sorted(images.glob("*.png")):
        media[f"{name}/{file.stem}"] = wandb.Image(str(file))
    if page.exists():
        media[f"{name}/page"] = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
    return media


def comparison_tables(comparison: ComparedSet) -> dict[str, wandb.Table]:
    """Returns tables of the variants and of the differences between them."""
    from imdbattn.report.comparison import as_rows  # runs do not need it

    tables = {}
    rows = {"variants": as_rows(comparison["variants"]), "pairs": as_rows(comparison["pairs"])}
    for name, entries in rows.items():
        if entries:
            tables[f"comparison/{name}"] = wandb.Table(dataframe=pd.DataFrame(entries))
    return tables
