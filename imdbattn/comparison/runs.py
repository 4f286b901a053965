"""Finished run folders: found, read, put together by what they share, and set in the order in which they are compared.

Suffixes of arrays: N reviews, C classes.
"""

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imdbattn.comparison.figures import read_curves
from imdbattn.errors import UserError
from imdbattn.settings.keys import BEYOND, DEBUG, RUNGS, SPLIT_FILES, WRITERS, as_text, flat, is_debug, variant
from imdbattn.settings.safety import read_json, read_settings

if TYPE_CHECKING:
    import pyarrow as pa

FINGERPRINT = {"test": "test_fingerprint", "validation": "val_fingerprint"}  # their names in metrics.json
PRINTS = ("fingerprint.test", "fingerprint.validation")  # beside the settings that runs share
MODELS = (*RUNGS, *BEYOND, *WRITERS)
REVIEWS = "reviews"  # what the items of a classifier are called
Skipped = dict[str, str]  # {"folder", "reason"}
EPOCHS = 1_000_000  # at most, of a learning curve

Rule = tuple[str, Callable[[Any], bool]]  # in words, and as a test


def whole(least: int, most: int = sys.maxsize) -> Rule:
    words = f"a whole number of at least {least}" + (f" and at most {most}" if most < sys.maxsize else "")
    return words, lambda v: type(v) is int and least <= v <= most


def number(low: float, high: float = float("inf"), open_end: bool = False) -> Rule:
    words = f"a number of at least {low:g}" if high == float("inf") else f"a number from {low:g} to {high:g}"
    words += " (exclusive)" if open_end else ""
    return (
        words,
        lambda v: (
            type(v) in (int, float) and math.isfinite(v) and low <= v <= high and not (open_end and v in (low, high))
        ),
    )


def maybe(rule: Rule) -> Rule:
    return f"{rule[0]}, or null", lambda v: v is None or rule[1](v)


TEXT: Rule = ("text of at least one character", lambda v: isinstance(v, str) and bool(v.strip()))


def obey(settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raises UserError naming the first key (dotted) whose value breaks its rule; an absent key breaks none."""
    for key, (words, holds) in rules.items():
        node: Any = settings
        name = ""
        for part in key.split("."):
            if not isinstance(node, dict):
                raise UserError(f"{name}={as_text(node)} must hold settings, as {key} is one")
            node, name = node.get(part, KeyError), f"{name}.{part}".strip(".")
            if node is KeyError:
                break
        if node is not KeyError and not holds(node):
            raise UserError(f"{key}={as_text(node)} must be {words}")


SHARE, AMOUNT = number(0, 1), number(0, 1e12)
FINGERPRINT_RULE: Rule = ("letters and digits", lambda v: isinstance(v, str) and re.fullmatch(r"\w+", v) is not None)
ON_OR_OFF: Rule = ("true, false, a number or null", lambda v: v is None or isinstance(v, (bool, int, float)))
RULES: dict[str, dict[str, Rule]] = {  # of the values that are read from each file; what else is in it stays unread
    "config.yaml": {
        "model.name": (
            "a name without slashes",
            lambda v: isinstance(v, str) and v.strip() not in ("", ".", "..") and "/" not in v,
        ),
        "model.after": maybe(TEXT),
        "task": TEXT,
        **dict.fromkeys(DEBUG, ON_OR_OFF),
    },
    "metrics.json": {
        "seed": whole(0),
        "test_set": TEXT,
        "items": TEXT,
        "labels": (
            "a list of different texts",
            lambda v: isinstance(v, list) and all(isinstance(name, str) for name in v) and 0 < len(v) == len({*v}),
        ),
        **dict.fromkeys(FINGERPRINT.values(), maybe(FINGERPRINT_RULE)),
        "val_accuracy": SHARE,
        "test_accuracy": maybe(SHARE),
        **dict.fromkeys(("val_bleu", "test_bleu"), maybe(number(0, 100))),
        **dict.fromkeys(("parameters", "tokens_per_s", "train_seconds", "epochs"), maybe(AMOUNT)),
    },
    "environment.json": {
        **dict.fromkeys(("python", "platform", "gpu", "versions.torch", "versions.lightning"), maybe(TEXT)),
        **dict.fromkeys(("cpus", "threads"), maybe(whole(0))),
    },
}


@dataclass(frozen=True)
class Predictions:
    """What a run said of each item of a split: of a review its class, of a string or sentence what it becomes.

    rows_N: row numbers in the source. labels_N: the true class, or the first reference as text. confidence_N: the
    probability that the model gave its own answer, true_N: that of the label. lengths_N: source tokens read.
    predicted_N: of a classifier only.
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
    """A finished run folder, whose values have the types of RULES.

    environment: {} where it has no environment.json. curves: of metrics.csv, name -> (epochs from 1, values).
    """

    folder: Path
    settings: dict[str, Any]
    metrics: dict[str, Any]
    environment: dict[str, Any]
    curves: dict[str, tuple[list[int], list[float]]]

    @property
    def items(self) -> str:
        """What the items of its data are called: reviews, or of an encoder-decoder strings or sentences."""
        return self.metrics.get("items", REVIEWS)

    @property
    def labels(self) -> list[str]:
        """Names of the classes; [] of an encoder-decoder."""
        return self.metrics["labels"] if self.items == REVIEWS else []

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Flat settings that its other seeds have too, with the fingerprints of its data; null is as good as absent."""
        data = {key: self.metrics.get(name) for key, name in zip(PRINTS, FINGERPRINT.values(), strict=True)}
        data["start"] = self.metrics.get("start")  # settings of the pretraining that it starts from
        return {key: value for key, value in (variant(self.settings) | data).items() if value is not None}

    def has(self, split: str) -> bool:
        """Whether it has predictions of a split, and says of which one."""
        return self.metrics.get(FINGERPRINT[split]) is not None and (self.folder / SPLIT_FILES[split][0]).exists()

    def predictions(self, split: str) -> Predictions:
        """Read from the folder at each call. Raises UserError for wrong values, and whatever a broken file raises."""
        table = read_table(self.folder / SPLIT_FILES[split][0])
        rows_N, lengths_N = (whole_numbers(table, name) for name in ("row", "length"))
        if self.items != REVIEWS:
            labels_N, right_N = column(table, "label", "string"), column(table, "right", "bool")
            said_N, true_N = (shares(table[name].to_numpy()) for name in ("probability", "label_probability"))
            return Predictions(rows_N, labels_N, right_N, said_N, true_N, lengths_N)
        classes = len(self.labels)
        labels_N, predicted_N = (whole_numbers(table, name, classes - 1) for name in ("label", "predicted"))
        probabilities_NC = shares(table["probabilities"].to_pylist())
        if probabilities_NC.shape != (len(labels_N), classes):
            raise UserError(f"unreadable: its probabilities are not {classes} for each review")
        true_N = probabilities_NC[np.arange(len(labels_N)), labels_N]
        return Predictions(
            rows_N, labels_N, predicted_N == labels_N, probabilities_NC.max(1), true_N, lengths_N, predicted_N
        )

    def texts(self, split: str) -> list[str] | None:
        """The sources, in the order of the predictions; None where they are not in the folder or cannot be read."""
        try:
            return column(read_table(self.folder / SPLIT_FILES[split][1]), "text", "string").tolist()
        except Exception:  # whatever a broken file raises: a comparison does without
            return None


def regular(file: Path) -> Path:
    """The same. Raises UserError for a folder, or for a pipe or device, which reading might wait for without end."""
    if not file.is_file():
        raise UserError(f"unreadable: its {file.name} is not a regular file")
    return file


def read_table(file: Path) -> "pa.Table":
    """Raises UserError where it has no lines, and whatever pyarrow raises for a broken file."""
    import pyarrow.parquet as pq

    with regular(file).open("rb") as opened:  # a path would have to be UTF-8
        table = pq.read_table(opened)
    if not len(table):
        raise UserError(f"unreadable: its {file.name} is empty")
    return table


def column(table: "pa.Table", name: str, *kinds: str) -> np.ndarray:
    """A column without nulls. kinds: its type in pyarrow begins with one of them. Raises UserError or KeyError."""
    found = table[name]
    if found.null_count or not str(found.type).removeprefix("large_").startswith(kinds):
        raise UserError(f"unreadable: its column {name} is not of type {kinds[0]}, or has nulls")
    return found.to_numpy()


def whole_numbers(table: "pa.Table", name: str, most: int = 2**62) -> np.ndarray:
    numbers_N = column(table, name, "int", "uint").astype(np.int64)
    if numbers_N.min() < 0 or numbers_N.max() > most:
        raise UserError(f"unreadable: its column {name} has values below 0 or above {most}")
    return numbers_N


def shares(probabilities: Any) -> np.ndarray:
    """As an array of numbers. Raises UserError where one of them is not a number from 0 to 1, ValueError, TypeError."""
    found = np.array(probabilities, dtype=float)
    if not np.isfinite(found).all():
        raise UserError("unreadable: its probabilities are not numbers: did training diverge?")
    if found.min() < 0 or found.max() > 1.001:  # float32's last bits
        raise UserError("unreadable: it has probabilities below 0 or above 1")
    return found


@dataclass(frozen=True)
class Variant:
    """Runs that differ in nothing but their seed. `varied`: the settings that others of its model name differ in."""

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


def find_runs(folders: Iterable[str | Path]) -> tuple[list[Run], list[Skipped]]:
    """The finished runs in `folders` at any depth, each once, and what was passed over and why.

    Of two runs with the same settings, seed and data, the one that ended last is taken. Raises UserError for a folder
    that is not there, or when there is no finished run in any.
    """
    found: dict[str, Run] = {}
    skipped: list[Skipped] = []
    asked = [Path(folder).expanduser() for folder in folders]
    for asked_folder in asked:
        if not os.path.isdir(asked_folder):  # False for a name that is too long, where Path.is_dir raises
            raise UserError(f"runs={asked_folder} is not a folder: give a run's, or one with runs in it")
    for folder in dict.fromkeys(place for root in asked for place in run_folders(root)):
        try:
            run = read_run(folder)
        except Exception as error:  # whatever a broken YAML or JSON file raises: it is one run of many
            skipped.append(passed_over(folder, error))
            continue
        key = json.dumps([run.shared, run.metrics["seed"]], sort_keys=True)
        older, newer = sorted((found.get(key, run), run), key=lambda run: (run.folder / "metrics.json").stat().st_mtime)
        if older is not newer:
            skipped.append({"folder": shown(older.folder), "reason": f"run again in {shown(newer.folder)}"})
        found[key] = newer
    if not found:
        unfinished = f"; passed over: {skipped[0]['folder']} ({skipped[0]['reason']})" if skipped else ""
        raise UserError(
            f"no finished run in {', '.join(map(str, asked)) or 'runs='}{unfinished}: choose another folder"
        )
    return list(found.values()), skipped


def run_folders(root: Path) -> Iterator[Path]:
    """Folders with a config.yaml, sorted by path. Links are followed to a run folder only: none goes in circles."""
    for place, inside, files in os.walk(root):
        if "config.yaml" in files:
            yield Path(place).resolve()
            inside.clear()
        inside[:] = sorted(name for name in inside if not name.startswith(".") and name != "wandb")
        links = (Path(place, name) for name in inside if Path(place, name).is_symlink())
        yield from (link.resolve() for link in links if (link / "config.yaml").exists())


def read_run(folder: Path) -> Run:
    """Reads all but predictions and texts, and checks it by RULES, so that everything behind can rely on types.

    Raises UserError where something is missing or wrong or the run is not a result, and whatever a broken file raises.
    """
    if not (folder / "metrics.json").exists():
        raise UserError("unfinished: it has no metrics.json")
    settings = obeyed(read_settings(folder / "config.yaml"), "config.yaml", "model.name")
    if settings.get("task") == "masked_words":
        raise UserError("pretraining: it guesses words, and has no place beside classifiers")
    if is_debug(settings):
        raise UserError("a debug run, not a result")
    metrics = obeyed(read_json(folder / "metrics.json"), "metrics.json", "seed", "test_set", "val_accuracy")
    if metrics.get("items", REVIEWS) == REVIEWS:
        obeyed(metrics, "metrics.json", "labels")
    environment, curves = folder / "environment.json", folder / "metrics.csv"
    run = Run(
        folder,
        settings,
        metrics,
        obeyed(read_json(environment), environment.name) if environment.exists() else {},
        read_curves(regular(curves)) if curves.exists() else {},
    )
    if any(not 0 < epoch <= EPOCHS for epochs, _ in run.curves.values() for epoch in epochs):
        raise UserError(f"unreadable: its metrics.csv counts epochs below 0 or above {EPOCHS:,}")
    # What JSON and UTF-8 cannot hold would end the writing of a comparison.
    json.dumps([settings, metrics, run.environment], sort_keys=True, ensure_ascii=False).encode()
    return run


def obeyed(values: dict[str, Any], file: str, *needed: str) -> dict[str, Any]:
    """The same values. Raises UserError where they lack one, or break the file's RULES."""
    try:
        obey(values, RULES[file])
    except UserError as error:
        raise UserError(f"unreadable: in its {file} {error}") from None
    if lacking := {*needed} - flat(values).keys():
        raise UserError(f"unreadable: its {file} lacks {', '.join(sorted(lacking))}")
    return values


def passed_over(folder: Path, error: Exception) -> Skipped:
    reason = str(error) if isinstance(error, UserError) else f"unreadable: {error}"
    return {"folder": shown(folder), "reason": " ".join(reason.split())[:300].encode(errors="replace").decode()}


def shown(folder: Path) -> str:
    """A path as typed here: relative where it lies below the current folder, with ? for what is not UTF-8."""
    here = Path.cwd()
    path = str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
    return path.encode(errors="replace").decode()


def variants(runs: Sequence[Run]) -> list[Variant]:
    """The runs put together by what they share, as the ladder is built: by rung, then by the varied settings.

    A label is the model's name and the settings in which variants of that name differ: `residual layers=6`,
    `residual_pe Dot width=64`. Where other data follow from a setting, such as `seq2seq lengths=[1, 10]`, the data's
    fingerprints tell nothing more: they count as a difference only between variants that no setting tells apart.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.shared, sort_keys=True), []).append(run)
    by_model: dict[str, list[list[Run]]] = {}
    for group in groups.values():
        by_model.setdefault(group[0].settings["model"]["name"], []).append(group)
    found = []
    for model in sorted(by_model, key=lambda name: MODELS.index(name) if name in MODELS else len(MODELS)):
        shared = [group[0].shared for group in by_model[model]]
        keys = [key for key in dict.fromkeys(key for one in shared for key in one) if differs(key, shared)]
        chosen = [key for key in keys if key not in PRINTS]
        if len({json.dumps([one.get(key) for key in chosen]) for one in shared}) == len(shared):
            keys = chosen
        varied = [{key: one.get(key) for key in keys} for one in shared]
        labels = [" ".join((model, *dict.fromkeys(words(one)))) for one in varied]
        if len(set(labels)) < len(labels):  # two settings of one short name
            labels = [" ".join((model, *(f"{key}={json.dumps(one[key])}" for key in keys))) for one in varied]
        order = sorted(range(len(varied)), key=lambda i: [rank(value) for value in varied[i].values()])
        groups_of = by_model[model]
        found += [
            Variant(labels[i], model, varied[i], sorted(groups_of[i], key=lambda run: run.metrics["seed"]))
            for i in order
        ]
    return found


def differs(key: str, shared: Sequence[dict[str, Any]]) -> bool:
    return any(one.get(key) != shared[0].get(key) for one in shared)


def words(varied: dict[str, Any]) -> list[str]:
    """The varied settings in short: a class by its name, another by the last part of its key; null goes without."""
    return [
        str(value).rpartition(".")[2] if key.endswith("_target_") else f"{key.rpartition('.')[2]}={in_short(value)}"
        for key, value in varied.items()
        if value is not None
    ]


def in_short(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if type(value) is float else json.dumps(value)


def rank(value: Any) -> tuple[int, list[float], str]:
    """Sorts null first, then numbers (false before true) and lists of them, then the rest, classes by own name."""
    numbers = value if isinstance(value, list) else [value]
    if all(isinstance(one, (int, float)) for one in numbers):
        return 1, numbers, ""
    return (0, [], "") if value is None else (2, [], str(value).rpartition(".")[2])


def apart_from(one: Variant, key: str) -> str:
    """What its label says without one of the settings."""
    return " ".join((one.model, *words({name: value for name, value in one.varied.items() if name != key})))


def neighbours(found: Sequence[Variant], against: str | None = None) -> list[tuple[int, int]]:
    """Places (from, to) in `found` of the variants to compare: those that differ in one thing.

    That is the rung which `to` comes after (`model.after`), with equal varied settings; and of the same model the
    variant with the next lower value of one setting. Where there is neither, it is the rung that `to` comes after
    with the settings that agree best, else the variant before it; a rung that comes after none has no neighbour then.
    `against`: the label of the one variant that all others are compared with instead, where there is one.
    """
    labels = [one.label for one in found]
    if against in labels:
        return [(labels.index(against), to) for to in range(len(found)) if labels[to] != against]
    pairs = []
    for place, to in enumerate(found):
        parents = [i for i, one in enumerate(found) if one.model == to.after and i != place]
        agreeing = [i for i in parents if not disagreeing(found[i], to)]
        lower = {steps[0]: i for i in range(place) if len(steps := differences(found[i], to)) == 1}
        closest = sorted(parents, key=lambda i: disagreeing(found[i], to))[:1] or [place - 1] * (
            place > 0 and to.after is not None
        )
        pairs += [(i, place) for i in [*agreeing, *lower.values()] or closest]
    return pairs


def disagreeing(one: Variant, other: Variant) -> int:
    """In how many of the settings that vary in either the two differ."""
    return sum(one.shared.get(key) != other.shared.get(key) for key in {*one.varied, *other.varied})


def differences(one: Variant, other: Variant) -> list[str]:
    """The things in which two variants of one model differ, by short name; [] for two models.

    Settings of one short name and equal values count once: they are one setting that another takes its value from.
    """
    if one.model != other.model:
        return []
    changed = {
        (re.sub(r"\._target_$", "", key).rpartition(".")[2], str(value), str(other.varied[key]))
        for key, value in one.varied.items()
        if value != other.varied[key]
    }
    return [name for name, *_ in changed]
