"""Finds and reads finished run folders, groups them into variants and selects the pairs to compare.

A run folder may come from anywhere: everything that is read is checked for its type, range and size.
Suffixes of arrays: N items (reviews, strings or sentences), C classes.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imdbattn.errors import UserError, in_line
from imdbattn.files import expanded, regular_file
from imdbattn.run_folder import FINGERPRINT, SPLIT_FILES, Curves, is_debug, read_curves
from imdbattn.settings.keys import BEYOND, CONTROLS, PRETRAINING, RUNGS, WRITERS, variant
from imdbattn.settings.safety import read_json, read_settings
from imdbattn.settings.schema import in_one_line

if TYPE_CHECKING:
    import pyarrow as pa

FINGERPRINT_KEYS = ("fingerprint.test", "fingerprint.validation")  # keys of the fingerprints in Run.shared
MODELS = (*RUNGS, *CONTROLS, *BEYOND, *WRITERS)
REVIEWS = "reviews"  # the items of a classifier
EPOCHS = 1_000_000  # the largest accepted number of epochs
Skipped = dict[str, str]  # {"folder", "reason"}


Text = Annotated[str, Field(pattern=r"\S")]
Name = Annotated[str, Field(pattern=r"^[^/]*[^/.\s][^/]*$")]  # becomes part of a path
Fingerprint = Annotated[str, Field(pattern=r"^\w+$")]  # becomes the name of a folder
Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=1e12)]


class File(BaseModel):
    """The checked part of a file; other keys are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Model(File):
    name: Name
    after: Text | None = None


class Config(File):
    model: Model


class Fold(File):
    folds: Annotated[int, Field(ge=2, le=1_000_000)]
    fold: Count
    fingerprint: Fingerprint


class Metrics(File):
    seed: Count
    test_set: Text
    val_accuracy: Share
    test_accuracy: Share | None = None
    val_bleu: Amount | None = None
    test_bleu: Amount | None = None
    items: Text | None = None
    labels: Annotated[list[str], Field(min_length=1)] | None = None
    test_fingerprint: Fingerprint | None = None
    val_fingerprint: Fingerprint | None = None
    cross_validation: Fold | None = None
    parameters: Amount | None = None
    tokens_per_s: Amount | None = None
    train_seconds: Amount | None = None
    epochs: Amount | None = None


class Environment(File):
    versions: dict[str, Any] | None = None


def check(values: dict[str, Any], schema: type[File], file: str) -> dict[str, Any]:
    """Returns `values`. Raises UserError naming the first key that is missing or has a wrong value."""
    try:
        schema.model_validate(values)
    except ValidationError as error:
        raise UserError(f"unreadable: in its {file} {in_one_line(error, values)}") from None
    return values


@dataclass(frozen=True)
class Predictions:
    """A run's predictions of a split.

    rows_N: row numbers in the source. labels_N: the true class, or the first reference as text. confidence_N: the
    probability of the model's own output, true_N: of the label. lengths_N: source tokens read. predicted_N: the
    predicted class; None for an encoder-decoder.
    """

    rows_N: np.ndarray
    labels_N: np.ndarray
    right_N: np.ndarray
    confidence_N: np.ndarray
    true_N: np.ndarray
    lengths_N: np.ndarray
    predicted_N: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run folder. environment is {} without environment.json.

    parts, fold_accuracies: of a cross-validation, the run of each fold and its test accuracy.
    """

    folder: Path
    settings: dict[str, Any]
    metrics: dict[str, Any]
    environment: dict[str, Any]
    curves: Curves
    parts: Sequence["Run"] = ()
    fold_accuracies: Sequence[float] = ()

    @property
    def model(self) -> str:
        return self.settings["model"]["name"]

    @property
    def items(self) -> str:
        """reviews; for an encoder-decoder strings or sentences."""
        return self.metrics.get("items") or REVIEWS

    @property
    def unit(self) -> str:
        """Of an item's length."""
        return "symbols" if self.items == "strings" else "words"

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

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Flat settings and data fingerprints that runs of other seeds share; without those that are null."""
        data = {key: self.metrics.get(name) for key, name in zip(FINGERPRINT_KEYS, FINGERPRINT.values(), strict=True)}
        data["start"] = self.metrics.get("start")  # settings of the pretraining whose weights it starts from
        return {key: value for key, value in (variant(self.settings) | data).items() if value is not None}

    def fingerprint(self, split: str) -> str | None:
        return self.metrics.get(FINGERPRINT[split])

    def has(self, split: str) -> bool:
        """Whether it has predictions of a split, its accuracy and its fingerprint."""
        scored = split == "validation" or self.metrics.get("test_accuracy") is not None
        return scored and self.fingerprint(split) is not None and (self.folder / SPLIT_FILES[split][0]).exists()

    def predictions(self, split: str) -> Predictions:
        """Reads the file at each call. Raises UserError for wrong values, and any exception of a broken file."""
        import pyarrow as pa

        integer, number, classes = pa.int64(), pa.float64(), len(self.labels)
        types = {"row": integer, "length": integer}
        if classes:
            types |= {"label": integer, "predicted": integer, "probabilities": pa.list_(number, classes)}
        else:
            types |= {"label": pa.string(), "right": pa.bool_(), "probability": number, "label_probability": number}
        table = read_table(self.folder / SPLIT_FILES[split][0], types)
        rows_N, lengths_N = table["row"].to_numpy(), checked_column(table, "length", 2**62)
        if not classes:
            labels_N, right_N = table["label"].to_numpy(), table["right"].to_numpy()
            confidence_N, true_N = (checked_column(table, name, 1.001) for name in ("probability", "label_probability"))
            return Predictions(rows_N, labels_N, right_N, confidence_N, true_N, lengths_N)
        labels_N, predicted_N = (checked_column(table, name, classes - 1) for name in ("label", "predicted"))
        probabilities_NC = checked_column(table, "probabilities", 1.001).reshape(-1, classes)  # rounding of float32
        true_N = probabilities_NC[np.arange(len(labels_N)), labels_N]
        right_N = predicted_N == labels_N
        return Predictions(rows_N, labels_N, right_N, probabilities_NC.max(1), true_N, lengths_N, predicted_N)

    def texts(self, split: str) -> list[str] | None:
        """The source texts in the order of the predictions; None where they are missing or cannot be read."""
        import pyarrow as pa

        try:
            return read_table(self.folder / SPLIT_FILES[split][1], {"text": pa.string()})["text"].to_pylist()
        except Exception:  # any exception of a broken file
            return None


def read_table(file: Path, types: dict[str, "pa.DataType"]) -> "pa.Table":
    """These columns of a Parquet file. Raises an exception if they are missing, have nulls or cannot be converted."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with regular_file(file).open("rb") as opened:  # pyarrow requires a path to be UTF-8
        table = pq.read_table(opened).select(list(types))
    if not len(table):
        raise UserError(f"unreadable: its {file.name} is empty")
    return table.cast(pa.schema([pa.field(name, kind, nullable=False) for name, kind in types.items()]))


def checked_column(table: "pa.Table", name: str, maximum: float) -> np.ndarray:
    """The values of a column, flattened. Raises UserError unless they are from 0 to `maximum`."""
    values = table[name].combine_chunks()
    array = np.asarray(values.flatten() if "list" in str(values.type) else values)
    if not np.isfinite(array).all():
        raise UserError(f"unreadable: its column {name} is not finite: did training diverge?")
    if array.min() < 0 or array.max() > maximum:
        raise UserError(f"unreadable: its column {name} has values below 0 or above {maximum:g}")
    return array


def find_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[Skipped]]:
    """The finished runs in `folders` at any depth, each once, and the folders that were skipped.

    Of runs with the same settings, seed and data the newest is used. Raises UserError for a missing folder, or if
    there is no finished run.
    """
    newest: dict[str, Run] = {}
    skipped: list[Skipped] = []
    roots = [expanded(folder) for folder in folders]
    for root in roots:
        if not os.path.isdir(root):  # Path.is_dir raises for a name that is too long
            raise UserError(f"runs={root} is not a folder: give a run folder, or a folder that contains runs")
    for folder in dict.fromkeys(folder for root in roots for folder in run_folders(root)):
        try:
            run = read_run(folder)
        except Exception as error:  # any exception: a broken file must not stop the comparison
            skipped.append(skip(folder, error))
            continue
        key = json.dumps([run.shared, run.metrics["seed"]], sort_keys=True)
        old, new = sorted((newest.get(key, run), run), key=lambda run: (run.folder / "metrics.json").stat().st_mtime)
        if old is not new:
            skipped.append({"folder": old.place, "reason": f"it was run again in {new.place}"})
        newest[key] = new
    if not newest:
        first = f"; skipped: {skipped[0]['folder']} ({skipped[0]['reason']})" if skipped else ""
        raise UserError(f"no finished run in {', '.join(map(str, roots)) or 'runs='}{first}: choose another folder")
    return list(newest.values()), skipped


def run_folders(root: Path) -> Iterator[Path]:
    """Folders with a config.yaml, sorted by path, without the trials of searches.

    A link is followed only to a run folder, which prevents cycles.
    """
    for place, inside, files in os.walk(root):
        if "config.yaml" in files:
            yield Path(place).resolve()
            inside.clear()
        if "search.yaml" in files:  # with trials, which have no test predictions, all would be compared on validation
            inside[:] = [name for name in inside if not name.startswith("trial-")]
        inside[:] = sorted(name for name in inside if not name.startswith(".") and name != "wandb")
        links = (Path(place, name) for name in inside if Path(place, name).is_symlink())
        yield from (link.resolve() for link in links if (link / "config.yaml").exists())


def read_run(folder: Path) -> Run:
    """Reads and checks everything but predictions and texts.

    Raises UserError for missing or wrong values and for a run that is not a result; any exception of a broken file.
    """
    settings = check(read_settings(folder / "config.yaml"), Config, "config.yaml")
    if settings.get("task") in PRETRAINING:
        raise UserError("pretraining: it predicts words and cannot be compared with classifiers")
    if is_debug(settings):
        raise UserError("a debug run, not a result")
    if not (folder / "metrics.json").exists():
        raise UserError("unfinished: it has no metrics.json")
    metrics = check(read_json(folder / "metrics.json"), Metrics, "metrics.json")
    if (metrics.get("items") or REVIEWS) == REVIEWS and not metrics.get("labels"):
        raise UserError("unreadable: in its metrics.json labels is missing")
    environment: dict[str, Any] = {}
    curves: Curves = {}
    if (file := folder / "environment.json").exists():
        environment = check(read_json(file), Environment, file.name)
    if (file := folder / "metrics.csv").exists():
        curves = read_curves(regular_file(file))
        if any(not 0 < epoch <= EPOCHS for values in curves.values() for epoch in values):
            raise UserError(f"unreadable: its metrics.csv has epochs below 0 or above {EPOCHS:,}")
    json.dumps([settings, metrics, environment], sort_keys=True, ensure_ascii=False).encode()  # as it will be written
    return Run(folder, settings, metrics, environment, curves)


def skip(folder: Path, error: Exception) -> Skipped:
    reason = str(error) if isinstance(error, UserError) else f"unreadable: {error}"
    return {"folder": display(folder), "reason": in_line(reason, 300).encode(errors="replace").decode()}


def display(folder: Path) -> str:
    """The path, relative to the current folder if it is below it, with ? for bytes that are not UTF-8."""
    here = Path.cwd()
    path = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
    return path.encode(errors="replace").decode()


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in their seed. varied: the settings in which variants of the same model differ."""

    label: str
    model: str
    varied: dict[str, Any]
    runs: list[Run]

    @property
    def after(self) -> str | None:
        return self.runs[0].settings["model"].get("after")

    @property
    def shared(self) -> dict[str, Any]:
        return self.runs[0].shared

    def label_without(self, key: str) -> str:
        """The label without one of the settings."""
        return " ".join((self.model, *short_names({name: value for name, value in self.varied.items() if name != key})))


def variants(runs: Sequence[Run]) -> list[Variant]:
    """The runs grouped by everything but the seed, in the order of the ladder, then of the varied settings.

    A label is the model's name and the settings in which its variants differ: `residual layers=6`,
    `residual_pe Dot width=64`. Fingerprints of data are part of it only if no setting distinguishes the variants.
    """
    by_model = {group[0].model: group for group in grouped(runs, lambda run: run.model)}
    ordered: list[Variant] = []
    for model in sorted(by_model, key=lambda name: MODELS.index(name) if name in MODELS else len(MODELS)):
        groups = grouped(by_model[model], lambda run: run.shared)
        seeds = [sorted(group, key=lambda run: run.metrics["seed"]) for group in groups]
        shared = [group[0].shared for group in seeds]
        keys = list(dict.fromkeys(key for one in shared for key in one))
        keys = [key for key in keys if any(one.get(key) != shared[0].get(key) for one in shared)]
        settings = [key for key in keys if key not in FINGERPRINT_KEYS]
        if len({json.dumps([one.get(key) for key in settings]) for one in shared}) == len(shared):
            keys = settings
        varied = [{key: one.get(key) for key in keys} for one in shared]
        labels = [" ".join((model, *dict.fromkeys(short_names(one)))) for one in varied]
        if len(set(labels)) < len(labels):  # two settings have the same short name
            labels = [" ".join((model, *(f"{key}={json.dumps(one[key])}" for key in keys))) for one in varied]
        group = [Variant(labels[i], model, varied[i], seeds[i]) for i in range(len(seeds))]
        ordered += sorted(group, key=lambda one: [sort_key(value) for value in one.varied.values()])
    return ordered


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    """The items with equal keys, which JSON can hold; groups and items keep their order."""
    groups: dict[str, list[Any]] = {}
    for item in items:
        groups.setdefault(json.dumps(key(item), sort_keys=True), []).append(item)
    return list(groups.values())


def short_names(varied: dict[str, Any]) -> list[str]:
    """The settings in short: a class by its name, another setting by the last part of its key; null is omitted."""
    return [
        class_name(value) if key.endswith("_target_") else f"{key.rpartition('.')[2]}={in_short(value)}"
        for key, value in varied.items()
        if value is not None
    ]


def in_short(value: Any) -> str:
    """The value of a setting; an object as its class and arguments, `EarlyStopping(patience=3)`."""
    if isinstance(value, list):
        return f"[{', '.join(map(in_short, value))}]"
    if isinstance(value, dict):
        arguments = ", ".join(f"{name}={in_short(one)}" for name, one in value.items() if name != "_target_")
        return class_name(value.get("_target_", "")) + (f"({arguments})" if arguments else "")
    return value if isinstance(value, str) else f"{value:g}" if type(value) is float else json.dumps(value)


def class_name(target: Any) -> str:
    return str(target).rpartition(".")[2]


def sort_key(value: Any) -> tuple[int, list[float], str]:
    """Sort key: null, then numbers (false before true) and lists of them, then the rest, classes by their name."""
    numbers = value if isinstance(value, list) else [value]
    if all(isinstance(one, (int, float)) for one in numbers):
        return 1, numbers, ""
    return (0, [], "") if value is None else (2, [], class_name(value))


def neighbours(ladder: Sequence[Variant], against: str | None = None) -> list[tuple[int, int]]:
    """Indices (from, to) of the variants to compare: those that differ in one thing.

    For `to` these are the variants of its parent (`model.after`) with the same varied settings, and for each setting
    the variant of its model with the next lower value. Without any: the variant of the parent that differs in the
    fewest settings, else the variant before it in the ladder; a model without a parent is then not compared.
    against: the label of a variant that all others are compared with instead, if it is in the ladder.
    """
    labels = [one.label for one in ladder]
    if against in labels:
        return [(labels.index(against), to) for to in range(len(ladder)) if labels[to] != against]
    pairs = []
    for place, to in enumerate(ladder):
        parents = {i: changed(one, to) for i, one in enumerate(ladder) if one.model == to.after and i != place}
        lower = {i: changed(ladder[i], to) for i in range(place) if ladder[i].model == to.model}
        next_lower = {names[0]: i for i, names in lower.items() if len(names) == 1}
        sources = [*(i for i, names in parents.items() if not names), *next_lower.values()]
        if not sources and parents:
            sources = [min(parents, key=lambda i: len(parents[i]))]
        elif not sources and place > 0 and to.after is not None:
            sources = [place - 1]
        pairs += [(i, place) for i in sources]
    return pairs


def changed(one: Variant, other: Variant) -> list[str]:
    """Short names of the varied settings in which two variants differ.

    Settings with the same short name and values count once: one takes its value from the other.
    """
    values = {key: (one.shared.get(key), other.shared.get(key)) for key in {*one.varied, *other.varied}}
    differing = {
        (key.removesuffix("._target_").rpartition(".")[2], str(old), str(new))
        for key, (old, new) in values.items()
        if old != new
    }
    return [name for name, *_ in differing]
