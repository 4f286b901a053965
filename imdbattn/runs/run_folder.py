"""Names and formats of the files in a run folder.

config.yaml  environment.json  metrics.json  metrics.csv  checkpoints/best.ckpt
checkpoints/last.ckpt  pictures/*.png predictions.parquet  reviews.parquet (of test)
validation_predictions.parquet  validation_reviews.parquet
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.errors import UserError
from imdbattn.io.files import write_atomically, write_table
from imdbattn.settings.keys import as_dict, flat, within
from imdbattn.settings.safety import read_settings

if TYPE_CHECKING:
    import numpy as np

    from imdbattn.settings.schema import Training
    from imdbattn.tasks.learner import SplitScores

SPLIT_FILES = {  # of each split: predictions, and their texts
    "test": ("predictions.parquet", "reviews.parquet"),
    "validation": ("validation_predictions.parquet", "validation_reviews.parquet"),
}
# folders of what commands compute with the best checkpoint
RESULTS = ("pictures", "evaluations", "explanations")
# settings of runs whose numbers are not results
DEBUG = (
    "trainer.fast_dev_run",
    "trainer.overfit_batches",
    "trainer.limit_val_batches",  # which score a part of a split only
    "trainer.limit_test_batches",
)
RUN_KEYS = {
    "model.name",
    "data.source",
    "optim._target_",
    "trainer._target_",
    "warmup",
    "decay",
    "seed",
}

# Columns of metrics.csv with the share of an attention's head: attention_share/layer1_head2
ATTENTION_SHARE = "attention_share/"


def head_name(attention: str, head: int) -> str:
    """Returns the name of a head, such as layer1_head2; heads are counted from 1."""
    return f"{attention}_head{head}"


def attention_of(head: str) -> str:
    """Returns the attention that a name of `head_name` belongs to, such as layer1."""
    return head.rpartition("_head")[0]


def is_debug(settings: "Training | Mapping[str, object]") -> bool:
    """Returns whether the numbers of a run are not results, as with debug=fast."""
    return any(flat(as_dict(settings)).get(key) for key in DEBUG)


def results_file(settings: "Training | Mapping[str, object]") -> str:
    """Returns the name of the file with a run's numbers, which is written last."""
    return "debug.json" if is_debug(settings) else "metrics.json"


def finished(folder: Path, test: bool = False) -> bool:
    """Returns whether a run folder has its results, with `test` those of the test split too. Debug
    runs are never finished.
    """
    names = ["metrics.json", *SPLIT_FILES["test"][:test]]
    # Path.exists raises for names that are too long
    return all(os.path.exists(folder / name) for name in names)


def temporary_files(folder: Path) -> Iterator[Path]:
    """Yields the files that a killed process has left in a run folder, in checkpoints/ and in
    pictures/.
    """
    for file in (*folder.glob("*.tmp"), *folder.glob("[cp]*/*.tmp")):
        if re.fullmatch(r"\.?[\w-]+\.(yaml|json|csv|parquet|ckpt|png|html)\.\w+\.tmp", file.name):
            yield file


def has_setting(keys: Iterable[str], name: str) -> bool:
    """Returns whether a setting, or a group of settings, is among these keys."""
    return any(within(key, name) for key in keys)


def check_folder(folder: Path) -> None:
    """Raises UserError unless `folder` is absent, empty or a run folder."""
    if not folder.is_dir():
        return
    files = set(folder.iterdir())
    if folder / "config.yaml" in files:
        keys = flat(read_settings(folder / "config.yaml"))
        is_run = all(has_setting(keys, known) for known in RUN_KEYS)
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


def write_json(path: Path, values: Mapping[str, object]) -> None:
    write_atomically(path, json.dumps(values, indent=2) + "\n")


def write_predictions(path: Path, scores: "SplitScores", rows: "np.ndarray") -> None:
    """Writes the row in the source and `scores.columns()` for each item of a split. rows: of all
    items of the split.
    """
    write_table(path, {"row": rows[scores.rows_N.numpy()], **scores.columns()})
