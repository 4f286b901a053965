"""Finished run folders: found, read, put together by what they share, and set in the order in which they are compared.

Suffixes of arrays: N reviews, C classes.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from imdbattn.errors import UserError
from imdbattn.safety import read_settings
from imdbattn.settings import BEYOND, RUNGS, SPLIT_FILES, WRITERS, variant

FINGERPRINT = {"test": "test_fingerprint", "validation": "val_fingerprint"}  # their names in metrics.json
PRINTS = ("fingerprint.test", "fingerprint.validation")  # beside the settings that runs share
MODELS = (*RUNGS, *BEYOND, *WRITERS)
REVIEWS = "reviews"  # what the items of a classifier are called
Skipped = dict[str, str]  # {"folder", "reason"}


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
    """A finished run folder."""

    folder: Path
    settings: dict[str, Any]
    metrics: dict[str, Any]

    @property
    def items(self) -> str:
        """What the items of its data are called: reviews, or of an encoder-decoder strings or sentences."""
        return str(self.metrics.get("items", REVIEWS))

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Flat settings that its other seeds have too, with the fingerprints of its data; null is as good as absent."""
        data = {key: self.metrics.get(name) for key, name in zip(PRINTS, FINGERPRINT.values(), strict=True)}
        data["start"] = self.metrics.get("start")  # settings of the pretraining that it starts from
        return {key: value for key, value in (variant(self.settings) | data).items() if value is not None}

    def has(self, split: str) -> bool:
        return (self.folder / SPLIT_FILES[split][0]).exists()

    def predictions(self, split: str) -> Predictions:
        """Read from the folder at each call. Raises OSError, ValueError (pyarrow's, too) or KeyError when broken."""
        import pyarrow.parquet as pq

        table = pq.read_table(self.folder / SPLIT_FILES[split][0])
        rows, labels, lengths = (table[name].to_numpy() for name in ("row", "label", "length"))
        if self.items != REVIEWS:
            right = table["right"].to_numpy().astype(bool)
            said, true = (table[name].to_numpy().astype(float) for name in ("probability", "label_probability"))
            return Predictions(rows, labels, right, finite(said), finite(true), lengths)
        probabilities_NC = finite(np.array(table["probabilities"].to_pylist(), dtype=float))
        if probabilities_NC.ndim != 2:
            raise ValueError("its probabilities are no numbers: did training diverge?")
        predicted, true = table["predicted"].to_numpy(), probabilities_NC[np.arange(len(labels)), labels]
        return Predictions(rows, labels, predicted == labels, probabilities_NC.max(1), true, lengths, predicted)

    def texts(self, split: str) -> list[str] | None:
        """The sources, in the order of the predictions; None where they are not in the folder or cannot be read."""
        import pyarrow.parquet as pq

        try:
            return pq.read_table(self.folder / SPLIT_FILES[split][1])["text"].to_pylist()
        except (OSError, ValueError, KeyError):
            return None


def finite(probabilities: np.ndarray) -> np.ndarray:
    """The same. Raises ValueError where one of them is no number."""
    if not np.isfinite(probabilities).all():
        raise ValueError("its probabilities are no numbers: did training diverge?")
    return probabilities


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
        key = json.dumps([run.shared, run.metrics["seed"]], sort_keys=True, default=str)
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
    """Raises UserError when something is missing in it, and whatever a broken file raises."""
    if not (folder / "metrics.json").exists():
        raise UserError("unfinished: it has no metrics.json")
    settings = read_settings(folder / "config.yaml")
    metrics = json.loads((folder / "metrics.json").read_text())
    if not isinstance(settings.get("model"), dict) or "name" not in settings["model"]:
        raise UserError("unreadable: its config.yaml has no model.name")
    if settings.get("task") == "masked_words":
        raise UserError("pretraining: it guesses words, and has no place beside classifiers")
    needed = {"seed", "val_accuracy", "test_set"} | (set() if "items" in metrics else {"labels"})
    if lacking := needed - set(metrics):
        raise UserError(f"unreadable: its metrics.json lacks {', '.join(sorted(lacking))}")
    return Run(folder, settings, metrics)


def passed_over(folder: Path, error: Exception) -> Skipped:
    reason = str(error) if isinstance(error, UserError) else f"unreadable: {' '.join(str(error).split())[:200]}"
    return {"folder": shown(folder), "reason": reason}


def shown(folder: Path) -> str:
    """A path as a person would type it here: relative where it lies below the current folder."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def variants(runs: Sequence[Run]) -> list[Variant]:
    """The runs put together by what they share, as the ladder is built: by rung, then by the varied settings.

    A label is the model's name and the settings in which variants of that name differ: `residual layers=6`,
    `residual_pe Dot width=64`. Where other data follow from a setting, such as `seq2seq lengths=[1, 10]`, the data's
    fingerprints tell nothing more: they count as a difference only between variants that no setting tells apart.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.shared, sort_keys=True, default=str), []).append(run)
    by_model: dict[str, list[list[Run]]] = {}
    for group in groups.values():
        by_model.setdefault(group[0].settings["model"]["name"], []).append(group)
    found = []
    for model in sorted(by_model, key=lambda name: MODELS.index(name) if name in MODELS else len(MODELS)):
        shared = [group[0].shared for group in by_model[model]]
        keys = [key for key in dict.fromkeys(key for one in shared for key in one) if differs(key, shared)]
        chosen = [key for key in keys if key not in PRINTS]
        if len({json.dumps([one.get(key) for key in chosen], default=str) for one in shared}) == len(shared):
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
    `against`: the label of the one variant that all others are compared with instead. Raises UserError when there is
    none of that label.
    """
    labels = [one.label for one in found]
    if against is not None:
        if against not in labels:
            raise UserError(f"against={against} is not among the runs; choose one of {', '.join(labels)}")
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
