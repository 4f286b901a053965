"""Finds and reads finished run folders, groups them into variants and selects the pairs to compare.

A run folder may come from anywhere: everything that is read is checked for its type, range and size.
Suffixes of arrays: N items (reviews, strings or sentences), C classes.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from imdbattn.errors import UserError
from imdbattn.run_folder import FINGERPRINT, SPLIT_FILES, is_debug, read_curves
from imdbattn.settings.keys import BEYOND, RUNGS, WRITERS, variant
from imdbattn.settings.safety import read_json, read_settings

if TYPE_CHECKING:
    import pyarrow as pa

PRINTS = ("fingerprint.test", "fingerprint.validation")  # their keys in Run.shared
MODELS = (*RUNGS, *BEYOND, *WRITERS)
REVIEWS = "reviews"  # the items of a classifier
EPOCHS = 1_000_000  # the largest accepted number of epochs
Skipped = dict[str, str]  # {"folder", "reason"}

STRICT = ConfigDict(strict=True, allow_inf_nan=False, protected_namespaces=())


def schema(required: dict[str, Any], optional: dict[str, Any]) -> type[BaseModel]:
    """A model with these keys and types. Optional keys may be null; others are ignored."""
    fields: dict[str, Any] = {key: (kind, ...) for key, kind in required.items()}
    fields |= {key: (kind | None, None) for key, kind in optional.items()}
    model: type[BaseModel] = create_model("Values", __config__=STRICT, **fields)
    return model


def distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("names must be different")
    return names


Text = Annotated[str, Field(pattern=r"\S")]
Name = Annotated[str, Field(pattern=r"^[^/]*[^/.\s][^/]*$")]  # becomes part of a path
Fingerprint = Annotated[str, Field(pattern=r"^\w+$")]  # becomes the name of a folder
Labels = Annotated[list[str], Field(min_length=1), AfterValidator(distinct)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Bleu = Annotated[float, Field(ge=0, le=100)]
Amount = Annotated[float, Field(ge=0, le=1e12)]
SCHEMAS = {
    "config.yaml": schema(
        {"model": schema({"name": Name}, {"after": Text})},
        {"task": Text, "trainer": dict[str, Any]},
    ),
    "metrics.json": schema(
        {"seed": Count, "test_set": Text, "val_accuracy": Share},
        {"items": Text, "labels": Labels, "test_accuracy": Share, "val_bleu": Bleu, "test_bleu": Bleu}
        | dict.fromkeys(FINGERPRINT.values(), Fingerprint)
        | dict.fromkeys(("parameters", "tokens_per_s", "train_seconds", "epochs"), Amount),
    ),
    "environment.json": schema(
        {},
        dict.fromkeys(("python", "platform", "gpu"), Text)
        | dict.fromkeys(("cpus", "threads"), Count)
        | {"versions": schema({}, {"torch": Text, "lightning": Text})},
    ),
}


def check(values: dict[str, Any], file: str) -> dict[str, Any]:
    """Returns `values`. Raises UserError naming the first key that is missing or has a wrong value."""
    try:
        SCHEMAS[file].model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(map(str, problem["loc"]))
        if problem["type"] == "missing":
            raise UserError(f"unreadable: its {file} lacks {key}") from None
        raise UserError(f"unreadable: in its {file} {key}={problem['input']!s:.100}: {problem['msg']}") from None
    return values


@dataclass(frozen=True)
class Predictions:
    """A run's predictions of a split.

    rows_N: row numbers in the source. labels_N: the true class, or the first reference as text. confidence_N: the
    probability of the model's own answer, true_N: of the label. lengths_N: source tokens read. predicted_N: the
    predicted class; None for an encoder-decoder.
    """

    rows_N: np.ndarray
    labels_N: np.ndarray
    right_N: np.ndarray
    confidence_N: np.ndarray
    true_N: np.ndarray
    lengths_N: np.ndarray
    predicted_N: np.ndarray | None = None


@dataclass(frozen=True)
class Run:
    """A finished run folder. environment is {} without environment.json; curves: name -> (epochs from 1, values)."""

    folder: Path
    settings: dict[str, Any]
    metrics: dict[str, Any]
    environment: dict[str, Any]
    curves: dict[str, tuple[list[int], list[float]]]

    @property
    def model(self) -> str:
        return self.settings["model"]["name"]

    @property
    def items(self) -> str:
        """reviews; for an encoder-decoder strings or sentences."""
        return self.metrics.get("items") or REVIEWS

    @property
    def labels(self) -> list[str]:
        """Names of the classes; [] for an encoder-decoder."""
        return self.metrics["labels"] if self.items == REVIEWS else []

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Flat settings and data fingerprints that runs of other seeds share; without those that are null."""
        data = {key: self.metrics.get(name) for key, name in zip(PRINTS, FINGERPRINT.values(), strict=True)}
        data["start"] = self.metrics.get("start")  # settings of the pretraining whose weights it starts from
        return {key: value for key, value in (variant(self.settings) | data).items() if value is not None}

    def has(self, split: str) -> bool:
        """Whether it has predictions of a split and the split's fingerprint."""
        return self.metrics.get(FINGERPRINT[split]) is not None and (self.folder / SPLIT_FILES[split][0]).exists()

    def predictions(self, split: str) -> Predictions:
        """Reads the file at each call. Raises UserError for wrong values, and any exception of a broken file."""
        table = read_table(self.folder / SPLIT_FILES[split][0])
        rows_N, lengths_N = integers(table, "row"), integers(table, "length")
        if self.items != REVIEWS:
            labels_N, right_N = column(table, "label", "string"), column(table, "right", "bool")
            confidence_N, true_N = (probabilities(table[name]) for name in ("probability", "label_probability"))
            return Predictions(rows_N, labels_N, right_N, confidence_N, true_N, lengths_N)
        classes = len(self.labels)
        labels_N, predicted_N = (integers(table, name, classes - 1) for name in ("label", "predicted"))
        probabilities_NC = probabilities(table["probabilities"])
        if probabilities_NC.shape != (len(labels_N), classes):
            raise UserError(f"unreadable: its probabilities are not {classes} for each review")
        true_N = probabilities_NC[np.arange(len(labels_N)), labels_N]
        right_N = predicted_N == labels_N
        return Predictions(rows_N, labels_N, right_N, probabilities_NC.max(1), true_N, lengths_N, predicted_N)

    def texts(self, split: str) -> list[str] | None:
        """The source texts in the order of the predictions; None where they are missing or cannot be read."""
        try:
            return column(read_table(self.folder / SPLIT_FILES[split][1]), "text", "string").tolist()
        except Exception:  # any exception of a broken file
            return None


def regular(file: Path) -> Path:
    """Returns `file`. Raises UserError for a folder, pipe or device: reading a pipe might never end."""
    if not file.is_file():
        raise UserError(f"unreadable: its {file.name} is not a regular file")
    return file


def read_table(file: Path) -> "pa.Table":
    import pyarrow.parquet as pq

    with regular(file).open("rb") as opened:  # pyarrow requires a path to be UTF-8
        table = pq.read_table(opened)
    if not len(table):
        raise UserError(f"unreadable: its {file.name} is empty")
    return table


def column(table: "pa.Table", name: str, *types: str) -> np.ndarray:
    """A column without nulls. types: prefixes of the accepted pyarrow types. Raises UserError or KeyError."""
    values = table[name]
    if values.null_count or not str(values.type).removeprefix("large_").startswith(types):
        raise UserError(f"unreadable: its column {name} is not of type {types[0]}, or has nulls")
    return values.to_numpy()


def integers(table: "pa.Table", name: str, maximum: int = 2**62) -> np.ndarray:
    values_N = column(table, name, "int", "uint").astype(np.int64)
    if values_N.min() < 0 or values_N.max() > maximum:
        raise UserError(f"unreadable: its column {name} has values below 0 or above {maximum}")
    return values_N


def probabilities(values: "pa.ChunkedArray") -> np.ndarray:
    """(N,), or (N, C) for lists. Raises UserError, ValueError or TypeError for anything but numbers from 0 to 1."""
    array = np.array(values.to_pylist(), dtype=float)
    if not np.isfinite(array).all():
        raise UserError("unreadable: its probabilities are not finite: did training diverge?")
    if array.min() < 0 or array.max() > 1.001:  # rounding of float32
        raise UserError("unreadable: it has probabilities below 0 or above 1")
    return array


def find_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[Skipped]]:
    """The finished runs in `folders` at any depth, each once, and the folders that were skipped.

    Of two runs with the same settings, seed and data the newest counts. Raises UserError for a missing folder, or
    without a finished run.
    """
    newest: dict[str, Run] = {}
    skipped: list[Skipped] = []
    roots = [Path(folder).expanduser() for folder in folders]
    for root in roots:
        if not os.path.isdir(root):  # Path.is_dir raises for a name that is too long
            raise UserError(f"runs={root} is not a folder: give a run's, or one with runs in it")
    for folder in dict.fromkeys(folder for root in roots for folder in run_folders(root)):
        try:
            run = read_run(folder)
        except Exception as error:  # any exception of a broken file: it is one run of many
            skipped.append(skip(folder, error))
            continue
        key = json.dumps([run.shared, run.metrics["seed"]], sort_keys=True)
        old, new = sorted((newest.get(key, run), run), key=lambda run: (run.folder / "metrics.json").stat().st_mtime)
        if old is not new:
            skipped.append({"folder": display(old.folder), "reason": f"run again in {display(new.folder)}"})
        newest[key] = new
    if not newest:
        first = f"; skipped: {skipped[0]['folder']} ({skipped[0]['reason']})" if skipped else ""
        raise UserError(f"no finished run in {', '.join(map(str, roots)) or 'runs='}{first}: choose another folder")
    return list(newest.values()), skipped


def run_folders(root: Path) -> Iterator[Path]:
    """Folders with a config.yaml, sorted by path. A link is followed only to a run folder, which prevents cycles."""
    for place, inside, files in os.walk(root):
        if "config.yaml" in files:
            yield Path(place).resolve()
            inside.clear()
        inside[:] = sorted(name for name in inside if not name.startswith(".") and name != "wandb")
        links = (Path(place, name) for name in inside if Path(place, name).is_symlink())
        yield from (link.resolve() for link in links if (link / "config.yaml").exists())


def read_run(folder: Path) -> Run:
    """Reads and checks everything but predictions and texts.

    Raises UserError for missing or wrong values and for a run that is not a result; any exception of a broken file.
    """
    if not (folder / "metrics.json").exists():
        raise UserError("unfinished: it has no metrics.json")
    settings = check(read_settings(folder / "config.yaml"), "config.yaml")
    if settings.get("task") == "masked_words":
        raise UserError("pretraining: it predicts masked words and cannot be compared with classifiers")
    if is_debug(settings):
        raise UserError("a debug run, not a result")
    metrics = check(read_json(folder / "metrics.json"), "metrics.json")
    if (metrics.get("items") or REVIEWS) == REVIEWS and not metrics.get("labels"):
        raise UserError("unreadable: its metrics.json lacks labels")
    environment: dict[str, Any] = {}
    curves: dict[str, tuple[list[int], list[float]]] = {}
    if (file := folder / "environment.json").exists():
        environment = check(read_json(file), file.name)
    if (file := folder / "metrics.csv").exists():
        curves = read_curves(regular(file))
        if any(not 0 < epoch <= EPOCHS for epochs, _ in curves.values() for epoch in epochs):
            raise UserError(f"unreadable: its metrics.csv has epochs below 0 or above {EPOCHS:,}")
    json.dumps([settings, metrics, environment], sort_keys=True, ensure_ascii=False).encode()  # as it will be written
    return Run(folder, settings, metrics, environment, curves)


def skip(folder: Path, error: Exception) -> Skipped:
    reason = str(error) if isinstance(error, UserError) else f"unreadable: {error}"
    return {"folder": display(folder), "reason": " ".join(reason.split())[:300].encode(errors="replace").decode()}


def display(folder: Path) -> str:
    """The path relative to the current folder where it lies below it, with ? for bytes that are not UTF-8."""
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
        return " ".join((self.model, *brief({name: value for name, value in self.varied.items() if name != key})))


def variants(runs: Sequence[Run]) -> list[Variant]:
    """The runs grouped by everything but the seed, in the order of the ladder, then of the varied settings.

    A label is the model's name and the settings in which its variants differ: `residual layers=6`,
    `residual_pe Dot width=64`. Fingerprints of data are part of it only where no setting tells the variants apart.
    """
    by_model: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        groups = by_model.setdefault(run.model, {})
        groups.setdefault(json.dumps(run.shared, sort_keys=True), []).append(run)
    ordered: list[Variant] = []
    for model in sorted(by_model, key=lambda name: MODELS.index(name) if name in MODELS else len(MODELS)):
        seeds = [sorted(group, key=lambda run: run.metrics["seed"]) for group in by_model[model].values()]
        shared = [group[0].shared for group in seeds]
        keys = list(dict.fromkeys(key for one in shared for key in one))
        keys = [key for key in keys if any(one.get(key) != shared[0].get(key) for one in shared)]
        settings = [key for key in keys if key not in PRINTS]
        if len({json.dumps([one.get(key) for key in settings]) for one in shared}) == len(shared):
            keys = settings
        varied = [{key: one.get(key) for key in keys} for one in shared]
        labels = [" ".join((model, *dict.fromkeys(brief(one)))) for one in varied]
        if len(set(labels)) < len(labels):  # two settings have the same short name
            labels = [" ".join((model, *(f"{key}={json.dumps(one[key])}" for key in keys))) for one in varied]
        group = [Variant(labels[i], model, varied[i], seeds[i]) for i in range(len(seeds))]
        ordered += sorted(group, key=lambda one: [rank(value) for value in one.varied.values()])
    return ordered


def brief(varied: dict[str, Any]) -> list[str]:
    """The settings in short: a class by its name, another setting by the last part of its key; null is omitted."""

    def text(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:g}" if type(value) is float else json.dumps(value)

    return [
        str(value).rpartition(".")[2] if key.endswith("_target_") else f"{key.rpartition('.')[2]}={text(value)}"
        for key, value in varied.items()
        if value is not None
    ]


def rank(value: Any) -> tuple[int, list[float], str]:
    """Sort key: null, then numbers (false before true) and lists of them, then the rest, classes by their name."""
    numbers = value if isinstance(value, list) else [value]
    if all(isinstance(one, (int, float)) for one in numbers):
        return 1, numbers, ""
    return (0, [], "") if value is None else (2, [], str(value).rpartition(".")[2])


def neighbours(ladder: Sequence[Variant], against: str | None = None) -> list[tuple[int, int]]:
    """Indices (from, to) of the variants to compare: those that differ in one thing.

    These are the rung that `to` comes after (`model.after`) with the same varied settings, and the variant of the same
    model with the next lower value of one setting. Without either: the variant of the rung before with the fewest
    other settings, else the variant before it in the ladder; a rung that comes after none then has no neighbour.
    `against`: the label of a variant that all others are compared with instead, if there is one.
    """
    labels = [one.label for one in ladder]
    if against in labels:
        return [(labels.index(against), to) for to in range(len(ladder)) if labels[to] != against]
    pairs = []
    for place, to in enumerate(ladder):
        distance = {i: disagreements(one, to) for i, one in enumerate(ladder) if one.model == to.after and i != place}
        equal = [i for i, differing in distance.items() if not differing]
        lower = {changed[0]: i for i in range(place) if len(changed := changes(ladder[i], to)) == 1}
        if not (sources := [*equal, *lower.values()]):
            before = [place - 1] if place > 0 and to.after is not None else []
            sources = sorted(distance, key=lambda i: distance[i])[:1] or before
        pairs += [(i, place) for i in sources]
    return pairs


def disagreements(one: Variant, other: Variant) -> int:
    """The number of settings varied in either in which the two differ."""
    return sum(one.shared.get(key) != other.shared.get(key) for key in {*one.varied, *other.varied})


def changes(one: Variant, other: Variant) -> list[str]:
    """Short names of the settings in which two variants of a model differ; [] for two models.

    Settings with the same short name and values count once: one takes its value from the other.
    """
    if one.model != other.model:
        return []
    changed = {
        (re.sub(r"\._target_$", "", key).rpartition(".")[2], str(value), str(other.varied[key]))
        for key, value in one.varied.items()
        if value != other.varied[key]
    }
    return [name for name, *_ in changed]
