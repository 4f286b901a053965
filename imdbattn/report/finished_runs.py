"""Finds and reads finished run folders, joins cross-validations, groups runs into variants, selects
pairs to compare.

Suffixes of arrays: N items (reviews, strings or sentences), C classes.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd

from imdbattn.errors import UserError, in_line
from imdbattn.runs.run import Curves
from imdbattn.runs.run import Run as OpenedRun
from imdbattn.runs.run_folder import SPLIT_FILES
from imdbattn.settings.keys import FINGERPRINT, hexdigest, variant
from imdbattn.settings.models import BEYOND, CONTROLS, ENCODER_DECODERS, RUNGS

MODELS = (*RUNGS, *CONTROLS, *BEYOND, *ENCODER_DECODERS)
REVIEWS = "reviews"  # the items of a classifier
# of folds: their means
NUMBERS = ("val_accuracy", "parameters", "tokens_per_s", "train_seconds", "epochs")
Skipped = dict[str, str]  # {"folder", "reason"}


@dataclass(frozen=True)
class Predictions:
    """A run's predictions of a split.

    rows_N: row numbers in the source. labels_N: the true class, or the first reference as text.
    confidence_N: the probability of the model's own output, true_N: of the label. lengths_N: source
    tokens read. predicted_N, probabilities_NC: of the classes; None for an encoder-decoder.
    """

    rows_N: np.ndarray
    labels_N: np.ndarray
    right_N: np.ndarray
    confidence_N: np.ndarray
    true_N: np.ndarray
    lengths_N: np.ndarray
    predicted_N: np.ndarray | None = None
    probabilities_NC: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run folder, or a cross-validation. parts: the runs of its folds; their reviews are
    ordered by row.
    """

    folder: Path
    settings: dict[str, Any]
    metrics: dict[str, Any]
    environment: dict[str, Any]
    curves: Curves
    parts: Sequence["Run"] = ()

    @property
    def model(self) -> str:
        return self.settings["model"]["name"]

    @property
    def overrides(self) -> list[str]:
        """Those of its command line that name its variant."""
        return self.settings.get("overrides", [])

    @property
    def variant(self) -> str:
        """Of its settings; computed for a run that imdbattn.train has not written, such as a
        baseline.
        """
        return self.settings.get("variant") or variant(self.settings)

    @property
    def identity(self) -> list[Any]:
        """What runs of other seeds share: the model, the settings, the data, and the pretraining it
        starts from.
        """
        return [*self.origin, *map(self.fingerprint, FINGERPRINT)]

    @property
    def origin(self) -> list[Any]:
        """What also the folds of a cross-validation share: all but the fingerprints of the splits
        that are scored.
        """
        facts = self.metrics
        return [
            self.model,
            self.variant,
            (self.settings.get("trainer") or {}).get("max_epochs"),
            facts.get("vectors"),
            facts.get("train_fingerprint") if not facts.get("cross_validation") else None,
            facts.get("start"),
        ]

    @property
    def items(self) -> str:
        """reviews; for an encoder-decoder strings or sentences."""
        return self.metrics.get("items") or REVIEWS

    @property
    def is_classifier(self) -> bool:
        return self.items == REVIEWS

    @property
    def labels(self) -> list[str]:
        """Names of the classes; [] for an encoder-decoder."""
        return self.metrics["labels"] if self.is_classifier else []

    @property
    def place(self) -> str:
        """The folder, for display."""
        return display(self.folder)

    def fingerprint(self, split: str) -> str | None:
        return self.metrics.get(FINGERPRINT[split])

    def has(self, split: str) -> bool:
        """Whether it has predictions of a split, its accuracy and its fingerprint."""
        if self.parts:
            return split == "test"
        scored = split == "validation" or self.metrics.get("test_accuracy") is not None
        return (
            scored
            and self.fingerprint(split) is not None
            and (self.folder / SPLIT_FILES[split][0]).exists()
        )

    def predictions(self, split: str) -> Predictions:
        """Reads the files at each call. Raises UserError for NaN."""
        table = self.read(SPLIT_FILES[split][0])
        rows_N, labels_N, lengths_N = (
            table[name].to_numpy() for name in ("row", "label", "length")
        )
        if self.is_classifier:
            predicted_N = table["predicted"].to_numpy()
            probabilities_NC = np.stack(table["probabilities"].to_numpy()).astype(float)
            confidence_N, true_N = (
                probabilities_NC.max(1),
                probabilities_NC[np.arange(len(labels_N)), labels_N],
            )
            right_N = predicted_N == labels_N
        else:
            predicted_N, probabilities_NC, right_N = None, None, table["right"].to_numpy()
            confidence_N, true_N = (
                np.asarray(table[name], float) for name in ("probability", "label_probability")
            )
        if not np.isfinite([confidence_N, true_N]).all():
            raise UserError("its probabilities are not finite: did training diverge?")
        measured = right_N, confidence_N, true_N, lengths_N
        return Predictions(rows_N, labels_N, *measured, predicted_N, probabilities_NC)

    def texts(self, split: str, rows_N: np.ndarray) -> list[str]:
        """The source texts of these rows."""
        return self.read(SPLIT_FILES[split][1]).set_index("row")["text"].loc[rows_N].tolist()

    def read(self, name: str) -> pd.DataFrame:
        """A Parquet file of the run folder, or of all folds."""
        tables = []
        for run in self.parts or [self]:
            tables.append(OpenedRun(run.folder).table(name))
        return pd.concat(tables).sort_values("row") if self.parts else tables[0]


def find_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[Skipped]]:
    """The finished runs in `folders` at any depth, each once, and the folders that were skipped.

    Of runs with the same settings, seed and data the newest is used. Raises UserError if there is
    no finished run, and OSError for a missing folder.
    """
    newest: dict[str, Run] = {}
    skipped: list[Skipped] = []
    roots = [Path(os.path.expanduser(folder)) for folder in folders]
    for folder in dict.fromkeys(folder for root in roots for folder in run_folders(root)):
        try:
            run = read_run(folder)
            key = json.dumps([run.identity, run.metrics["seed"]], sort_keys=True)
        except Exception as error:  # any exception: a broken file must not stop the comparison
            skipped.append(skip(folder, error))
            continue
        old, new = sorted(
            (newest.get(key, run), run),
            key=lambda run: (run.folder / "metrics.json").stat().st_mtime,
        )
        if old is not new:
            skipped.append({"folder": old.place, "reason": f"it was run again in {new.place}"})
        newest[key] = new
    if not newest:
        first = f"; skipped: {skipped[0]['folder']} ({skipped[0]['reason']})" if skipped else ""
        raise UserError(
            f"no finished run in {', '.join(map(str, roots)) or 'runs='}{first}: choose another"
            " folder"
        )
    return list(newest.values()), skipped


def run_folders(root: Path) -> Iterator[Path]:
    """Folders with a config.yaml, sorted by path, without the trials of searches.

    A link is followed only to a run folder, which prevents cycles. Raises OSError unless `root` is
    a folder.
    """
    os.listdir(root)  # os.walk ignores errors
    for place, inside, files in os.walk(root):
        if "config.yaml" in files:
            yield Path(place).resolve()
            inside.clear()
        # with trials, which have no test predictions, all would be compared on validation
        if "search.yaml" in files:
            inside[:] = [name for name in inside if not name.startswith("trial-")]
        inside[:] = sorted(name for name in inside if not name.startswith(".") and name != "wandb")
        links = (Path(place, name) for name in inside if Path(place, name).is_symlink())
        yield from (link.resolve() for link in links if (link / "config.yaml").exists())


def read_run(folder: Path) -> Run:
    """Reads everything but predictions and texts. Raises UserError for a run that is not a
    result.
    """
    opened = OpenedRun(folder)
    if not opened.is_result or opened.metrics.get("starts_model"):
        raise UserError(
            "not a result: an unfinished run, a debug run, or a pretraining, which predicts words"
        )
    return Run(folder, opened.recorded, opened.metrics, opened.environment, opened.curves)


def skip(folder: Path, error: Exception) -> Skipped:
    reason = (
        str(error)
        if isinstance(error, UserError)
        else f"unreadable: {type(error).__name__}: {error}"
    )
    return {"folder": display(folder), "reason": in_line(reason, 300)}


def display(folder: Path) -> str:
    """The path, relative to the current folder if it is below it."""
    return str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder)


# --- cross-validation -----------------------------------------------------------------------------


def join_folds(runs: Iterable[Run], skipped: Iterable[Skipped]) -> tuple[list[Run], list[Skipped]]:
    """The runs, with one in place of those of all folds of a cross-validation, and the skipped
    folders.

    A cross-validation without the test predictions of all folds is skipped.
    """
    runs, skipped = list(runs), list(skipped)
    joined = [run for run in runs if not run.metrics.get("cross_validation")]

    def all_but_fold(run: Run) -> list[Any]:
        facts = run.metrics
        return [*run.origin, facts["seed"], facts["cross_validation"]["fingerprint"]]

    for group in grouped((run for run in runs if run not in joined), all_but_fold):
        try:
            joined.append(join(group))
        except Exception as error:  # any exception of a broken file
            skipped.append(skip(group[0].folder, error))
    return joined, skipped


def join(runs: Sequence[Run]) -> Run:
    """The runs of one cross-validation as one run, with its `fold_accuracies` among the metrics.

    Raises UserError if a fold is missing.
    """
    folds, fingerprint = (
        runs[0].metrics["cross_validation"][key] for key in ("folds", "fingerprint")
    )
    name = f"cross-validation of {runs[0].model}, seed {runs[0].metrics['seed']}"
    by_fold = {run.metrics["cross_validation"]["fold"]: run for run in runs if run.has("test")}
    if missing := [str(fold) for fold in range(1, folds + 1) if fold not in by_fold]:
        raise UserError(
            f"{name}: no test predictions of fold {', '.join(missing)} of {folds}, so its other"
            " folds are omitted too"
        )
    runs = [by_fold[fold] for fold in range(1, folds + 1)]
    first, rights = runs[0], [run.predictions("test").right_N for run in runs]
    values: dict[str, list[Any]] = {key: [run.metrics.get(key) for run in runs] for key in NUMBERS}
    fingerprints = "".join(str(run.fingerprint("validation")) for run in runs)
    metrics = first.metrics | {
        **{key: None if None in numbers else mean(numbers) for key, numbers in values.items()},
        "test_accuracy": float(np.concatenate(rights).mean()),
        "fold_accuracies": [float(right_N.mean()) for right_N in rights],
        "test_set": first.metrics["test_set"].replace(f": fold 1 of {folds} ", f": {folds} folds "),
        FINGERPRINT["test"]: fingerprint,
        FINGERPRINT["validation"]: sha256(fingerprints.encode()).hexdigest()[:16],
    }
    # NaN where a fold has no value
    means: Any = sum(pd.DataFrame(run.curves) for run in runs) / folds
    curves = {
        str(key): column.dropna().to_dict() for key, column in means.items() if column.notna().any()
    }
    return Run(first.folder, first.settings, metrics, first.environment, curves, runs)


# --- variants -------------------------------------------------------------------------------------


@dataclass
class Variant:
    """Runs that differ only in seed and hardware. overrides: those of all its runs that other
    variants do not have.
    """

    model: str
    overrides: list[str]
    runs: list[Run]
    label: str = ""

    @property
    def after(self) -> str | None:
        return self.runs[0].settings["model"].get("after")


def variants(runs: Sequence[Run]) -> list[Variant]:
    """The runs grouped by all but seed and hardware, in the order of the ladder, then by the values
    of overrides.

    A label is the model's name and the overrides that not all runs have: `residual layers=6`,
    `residual_pe score=Dot`. Where that is the same, whole names and the experiment are given, then
    the digest of `init`, at last their own.
    """
    common = shared_overrides(runs)
    found = []
    for group in grouped(runs, lambda run: run.identity):
        own = [word for word in shared_overrides(group) if word not in common]
        found.append(
            Variant(group[0].model, own, sorted(group, key=lambda run: run.metrics["seed"]))
        )
    order = [*MODELS, *sorted({one.model for one in found} - {*MODELS})]
    found.sort(key=lambda one: (order.index(one.model), list(map(sort_key, one.overrides))))
    names: list[Callable[[Variant], list[str]]] = [
        lambda one: [
            in_short(word) for word in one.overrides if not word.startswith("experiment=")
        ],
        lambda one: one.overrides,
        lambda one: [
            *one.overrides,
            *(f"init={run.metrics['start']}" for run in one.runs[:1] if "start" in run.metrics),
        ],
        lambda one: [*one.overrides, f"#{hexdigest({'': one.runs[0].identity})}"],
    ]
    for name in names:
        times = Counter(one.label for one in found)
        for one in found:
            if not one.label or times[one.label] > 1:
                one.label = " ".join([one.model, *name(one)])
    return found


def shared_overrides(runs: Sequence[Run]) -> list[str]:
    """The overrides that all runs have."""
    return sorted(set.intersection(*(set(run.overrides) for run in runs)))


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    """The items with equal keys, which JSON can hold; groups and items keep their order."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        groups.setdefault(json.dumps(key(item), sort_keys=True), []).append(item)
    return list(groups.values())


def in_short(word: str) -> str:
    """The last part of its key and its value: `lr=0.003`; of a class its name: `score=Dot`."""
    key, _, value = word.partition("=")
    if key.endswith("._target_"):
        key, value = key.removesuffix("._target_"), value.rpartition(".")[2]
    return f"{key.rpartition('.')[2]}={value}"


def sort_key(word: str) -> tuple[str, list[float], str]:
    """By setting, then by the numbers in its value."""
    key, _, value = word.partition("=")
    return key, list(map(float, re.findall(r"\d+\.?\d*(?:e-?\d+)?", value))), value


def neighbours(ladder: Sequence[Variant], against: str | None = None) -> list[tuple[int, int]]:
    """Indices (from, to) of the variants to compare.

    Each rung is compared with the one that it extends (`model.after`), or where that is absent with
    the one before it, unless `after` is null; variants with equal overrides are compared. Further
    variants of a rung are compared with its first. against: the label of a variant that all others
    are compared with instead, if it is in the ladder.
    """
    labels, models = [one.label for one in ladder], [one.model for one in ladder]
    if against in labels:
        return [(labels.index(against), to) for to in range(len(ladder)) if labels[to] != against]
    pairs = []
    for place, to in enumerate(ladder):
        parents = [i for i, model in enumerate(models) if model == to.after]
        sources = [i for i in parents if ladder[i].overrides == to.overrides]
        if (first := models.index(to.model)) < place:
            sources.append(first)
        elif not sources and to.after is not None:
            sources = parents[:1] or [place - 1] * (place > 0)
        pairs += [(i, place) for i in sources]
    return pairs
