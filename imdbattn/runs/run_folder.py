"""Names and formats of the files in a run folder.

config.yaml  environment.json  metrics.json  metrics.csv  checkpoints/best.ckpt
checkpoints/last.ckpt  pictures/*.png predictions.parquet  reviews.parquet (of test)
validation_predictions.parquet  validation_reviews.parquet
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imdbattn.errors import UserError
from imdbattn.io.files import expanded, write_atomically, write_table
from imdbattn.settings.keys import as_dict, flat
from imdbattn.settings.safety import read_json, read_settings

if TYPE_CHECKING:
    from imdbattn.settings.schema import Training

SPLIT_FILES = {  # of each split: predictions, and their texts
    "test": ("predictions.parquet", "reviews.parquet"),
    "validation": ("validation_predictions.parquet", "validation_reviews.parquet"),
}
# folder in that of a finished run, whose files it replaces when more epochs have ended
CONTINUED = ".continued"
# folder with the files of a finished run in the folder of a new one, until that has ended
REPLACED = ".replaced"
# folders of what commands compute with the best checkpoint
RESULTS = ("pictures", "evaluations", "explanations")
# settings of runs whose numbers are not results
DEBUG = ("trainer.fast_dev_run", "trainer.overfit_batches")
Curves = dict[str, dict[int, float]]  # name such as val/loss -> epoch counted from 1 -> value
RUN_KEYS = {
    "model.name",
    "data.source",
    "optim._target_",
    "trainer._target_",
    "warmup",
    "decay",
    "seed",
}


def is_debug(settings: Any) -> bool:
    """Whether the numbers of a run are not results, as with debug=fast."""
    return any(flat(as_dict(settings)).get(key) for key in DEBUG)


def results_file(settings: Any) -> str:
    """Name of the file with a run's numbers, which is written last."""
    return "debug.json" if is_debug(settings) else "metrics.json"


def run_of(folder: Path) -> Path:
    """The run folder, of a continuation that of the finished run."""
    return folder.parent if folder.name == CONTINUED else folder


def finished(folder: Path, test: bool = False) -> bool:
    """Whether a run folder has its results, with `test` those of the test split too. Debug runs are
    never finished.
    """
    names = ["metrics.json", *SPLIT_FILES["test"][:test]]
    # Path.exists raises for names that are too long
    return all(os.path.exists(folder / name) for name in names)


def temporary_files(folder: Path) -> Iterator[Path]:
    """Files that a killed process has left in a run folder, in checkpoints/ and in pictures/."""
    for file in (*folder.glob("*.tmp"), *folder.glob("[cp]*/*.tmp")):
        if re.fullmatch(r"\.?[\w-]+\.(yaml|json|csv|parquet|ckpt|png|html)\.\w+\.tmp", file.name):
            yield file


def check_folder(folder: Path) -> None:
    """Raises UserError unless `folder` is absent, empty or a run folder."""
    if not folder.is_dir():
        return
    files = set(folder.iterdir())
    if folder / "config.yaml" in files:
        is_run = flat(read_settings(folder / "config.yaml")).keys() >= RUN_KEYS
    else:
        others = files - {*temporary_files(folder)}
        is_run = all(
            file.suffix == ".log" or ".lock" in file.name or file.name == ".hydra"
            for file in others
        )
    if not is_run:
        raise UserError(
            f"{os.path.relpath(folder)} contains files other than a run's: choose another"
            " hydra.run.dir"
        )


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(values, indent=2) + "\n")


def write_predictions(path: Path, scores: Any, rows: Any) -> None:
    """Writes the row in the source and `scores.columns()` for each item of a split. rows: of all
    items of the split.
    """
    write_table(path, {"row": rows[scores.rows_N.numpy()], **scores.columns()})


def open_run(
    run: str, trust: Any = None, own: Mapping[str, Any] | None = None
) -> "tuple[Training, Path]":
    """Settings and best checkpoint of a run folder, or of the run folder that holds the given
    checkpoint.

    trust, own: see `refuse_untrusted`. Raises UserError if a file is missing, damaged or not
    trusted.
    """
    # imports pydantic, which is slow and not needed for `--help`
    from imdbattn.tasks.task import read_run_settings

    folder = expanded(run)
    checkpoint = folder / "checkpoints" / "best.ckpt"
    # Path.is_file raises for names that are too long
    if run.endswith(".ckpt") and os.path.isfile(folder):
        folder, checkpoint = (file := folder.absolute()).parents[1], file
    for file in (folder / "config.yaml", checkpoint):
        if not os.path.exists(file):
            raise UserError(
                f"run={run} is not a finished run: it has no {file.relative_to(folder)}. Give the"
                " path that training printed, or resume it: imdbattn.train resume=..."
            )
    return read_run_settings(folder / "config.yaml", trust, own), checkpoint


def text_column(run: str | list[str] | None) -> str:
    """The data.text_column of a run, of an export or of a checkpoint in a run folder; `text` where
    there is none.
    """
    place = expanded(run if isinstance(run, str) else "")
    folder = place.parents[1] if place.suffix == ".ckpt" else place
    with suppress(Exception):  # of a wrong run=, which is named later
        export = (folder / "config.json").exists()
        settings = (
            read_json(folder / "config.json")["settings"]
            if export
            else read_settings(folder / "config.yaml")
        )
        return str(settings["data"]["text_column"])
    return "text"


def read_curves(metrics_csv: Path) -> Curves:
    """The values in metrics.csv; Lightning leaves most cells of a line empty.

    A last line without its end, of a run that is writing it, is omitted.
    """
    curves: Curves = {}
    complete, newline, _ = metrics_csv.read_text().rpartition("\n")
    for line in csv.DictReader(io.StringIO(complete + newline)):
        for name, value in line.items():
            if value and name not in ("epoch", "step") and line.get("epoch"):
                curves.setdefault(name, {})[int(float(line["epoch"])) + 1] = float(value)
    return curves
