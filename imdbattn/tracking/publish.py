"""What a finished run, and a comparison of runs, leave in W&B: all of it read from the folder that they filled.

W&B must never stop a run: what goes wrong here is a line in the log.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from imdbattn.run_folder import SPLIT_FILES
from imdbattn.tracking.wandb_run import start_wandb

log = logging.getLogger(__name__)

VALUES = {  # name in W&B -> name in metrics.json
    "best/val_accuracy": "val_accuracy",
    "best/val_loss": "val_loss",
    "best/val_bleu": "val_bleu",
    "test/accuracy": "test_accuracy",
    "test/loss": "test_loss",
    "test/bleu": "test_bleu",
    "parameters": "parameters",
    "train_seconds": "train_seconds",
    "epoch_seconds": "epoch_seconds",
    "tokens_per_s": "tokens_per_s",
}


def publish_run(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Logs the results that a run folder holds into the live W&B run; does nothing where there is none.

    Best and test values, confusion matrix, a table of predictions, the pictures and the page on attention; of the
    test split, or of validation where test was left untouched.
    """
    wandb = sys.modules.get("wandb")
    if wandb is None or wandb.run is None:
        return
    run = wandb.run
    with never_fatal("best values"):
        run.log({name: metrics[key] for name, key in VALUES.items() if key in metrics})
    with never_fatal("predictions"):
        run.log(predictions(folder, metrics, run.config["logger"]))
    with never_fatal("pictures"):
        log_media(run, "pictures", folder / "pictures", folder / "pictures" / "attention.html")


def publish_comparison(
    comparison: Mapping[str, Any], out: Path, logger_settings: Mapping[str, Any], group: str | None
) -> None:
    """Logs a comparison as a run of its own, named `comparison`, into the group of the runs compared.

    Args:
        comparison: what analysis.comparison returns.
        out: the folder its report was written into: comparison.html and figures/*.png.
        logger_settings: as the runs' own; nothing is done where they name another logger than W&B.
        group: name of the sweep; None takes the settings' own.
    """
    if logger_settings["name"] != "wandb":
        return
    facts = {key: comparison[key] for key in ("split", "test_set", "fingerprint", "reviews", "method")}
    with never_fatal("the comparison's results"):
        run = start_wandb(logger_settings, out, facts, "comparison", "comparison", ["comparison"], group)
        if run is None:
            return
        try:
            run.log({f"comparison/{name}": table for name, table in comparison_tables(comparison).items()})
            for rung in comparison["rungs"]:
                numbers = {f"rungs/{rung['label']}/{name}": value for name, value in brief(rung).items()}
                run.summary.update({name: value for name, value in numbers.items() if value is not None})
            log_media(run, "comparison", out / "figures", out / "comparison.html")
        finally:
            run.finish()


@contextmanager
def never_fatal(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning("W&B: %s were not logged: %s", what, " ".join(f"{type(error).__name__} {error}".split()))


def predictions(folder: Path, metrics: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The confusion matrix of a split, and a table of some of its reviews with what the model said of them.

    Of an encoder-decoder the table alone: sources, references, and what was written.
    """
    import pyarrow.parquet as pq
    import wandb

    if metrics.get("items") == "masked words":  # counts of words, nothing that a table could show
        return {}
    split = "test" if "test_accuracy" in metrics else "validation"
    prefix = "test" if split == "test" else "val"
    said, sources = (pq.read_table(folder / name).to_pydict() for name in SPLIT_FILES[split])
    text_of = dict(zip(sources["row"], sources["text"], strict=True))  # of the whole split, which may be cut short
    found: dict[str, Any] = {}
    columns: list[str | int] = ["source", "reference", "output", "probability"]
    if "labels" in metrics:
        names = [str(name) for name in metrics["labels"]]
        found[f"{prefix}/confusion_matrix"] = wandb.plot.confusion_matrix(
            y_true=said["label"], preds=said["predicted"], class_names=names, title=f"Confusion, {split}"
        )
        said |= {key: [names[number] for number in said[key]] for key in ("label", "predicted")}
        said["right"] = [label == own for label, own in zip(said["label"], said["predicted"], strict=True)]
        columns = ["text", "label", "predicted", "probability"]
    if rows := rows_to_show(np.array(said["right"]), np.array(said["probability"]), settings["table_rows"]):
        most = settings["table_characters"]
        shown = ([text_of[said["row"][n]], said["label"][n], said["predicted"][n]] for n in rows)
        lines = [
            [*(cut(text, most) for text in texts), said["probability"][n]] for n, texts in zip(rows, shown, strict=True)
        ]
        found[f"{prefix}/predictions"] = wandb.Table(columns=columns, data=lines)
    return found


def rows_to_show(right_N: np.ndarray, probability_N: np.ndarray, count: int) -> list[int]:
    """`count` reviews: at most half of them mistakes, the most confident first; then right ones of all confidences.

    Where there are too few of one kind, the other fills up.
    """
    order = np.argsort(-probability_N, kind="stable")
    right, wrong = order[right_N[order]], order[~right_N[order]]
    wrong = wrong[: max(count // 2, count - len(right))]
    spread = np.linspace(0, len(right) - 1, min(count - len(wrong), len(right))).round().astype(int)
    return [*wrong.tolist(), *right[spread].tolist()]


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def log_media(run: Any, name: str, images: Path, page: Path) -> None:
    """A folder's PNG files as images, and a page as it is: ours load nothing and have the reviews escaped."""
    import wandb

    media: dict[str, Any] = {f"{name}/{file.stem}": wandb.Image(str(file)) for file in sorted(images.glob("*.png"))}
    if page.exists():
        media[f"{name}/page"] = wandb.Html(page.read_text(encoding="utf-8"), inject=False)
    if media:
        run.log(media)


def brief(rung: Mapping[str, Any]) -> dict[str, Any]:
    """A rung's numbers, flat; None for what is not known."""
    spreads = {
        f"{split}_{name}": rung[split] and rung[split][name]
        for split in ("validation", "test")
        for name in ("mean", "sd")
    }
    interval = dict(zip(("low", "high"), rung["interval"], strict=True))
    rest = {name: rung[name] for name in ("parameters", "tokens_per_s", "train_seconds", "epochs", "ece")}
    return {"seeds": len(rung["seeds"]), **spreads, **interval, **rest}


def comparison_tables(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The rungs, and the differences between neighbours, as tables."""
    import wandb

    rungs = [{"rung": rung["label"], **brief(rung)} for rung in comparison["rungs"]]
    pairs = [
        {
            **{name: pair[name] for name in ("from", "to", "difference")},
            **dict(zip(("low", "high"), pair["interval"], strict=True)),
            **{name: pair[name] for name in ("mcnemar_p", "holm_p", "verdict", "words")},
        }
        for pair in comparison["pairs"]
    ]
    return {
        name: wandb.Table(columns=list(lines[0]), data=[list(line.values()) for line in lines])
        for name, lines in (("rungs", rungs), ("pairs", pairs))
        if lines
    }
