"""The finished runs that the page shows, and their models; the models used last stay in memory."""

import hashlib
import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from imdbattn.api.model import Model, load
from imdbattn.report.finished_runs import Run, Variant, find_runs, in_short, read_run, variants
from imdbattn.runs.run_folder import SPLIT_FILES
from imdbattn.tools.explore.settings import Explore

LOADED = 12  # models in memory


class Message(BaseModel):
    """What the page sends. A subclass has a method `answer(runs)` that returns JSON values, bytes
    or a Response.
    """

    model_config = ConfigDict(extra="forbid", strict=True)


class Runs:
    """The finished runs in `folders`. Raises UserError if there is none."""

    def __init__(self, folders: Sequence[str], cfg: Explore):
        runs, self.skipped = find_runs(folders)
        found = variants(runs)
        named = [
            (r, label)
            for one, label in zip(found, short_labels(found), strict=True)
            for r in one.runs
        ]
        self.by_id: dict[str, Run] = {id_of(run): run for run, _ in named}
        self.labels = {id_of(run): label for run, label in named}
        # Called with the name of a run and its version, so that a run that is trained again is read
        # again.
        self.read = lru_cache(None)(lambda name, _: read_run(self.by_id[name].folder))
        self.load = lru_cache(LOADED)(
            lambda name, _: load(self.by_id[name].folder, cfg.trust, **cfg.data.model_dump())
        )
        # One model computes at a time: threads would compete for the processor, and explanations
        # change a model.
        self.lock = threading.Lock()

    def title(self, name: str) -> str:
        return f"{self.labels[name]}, seed {self.by_id[name].metrics['seed']}"

    def version(self, name: str) -> int:
        """When its metrics.json was written, at the end of training."""
        return (self.by_id[name].folder / "metrics.json").stat().st_mtime_ns

    def run(self, name: str) -> Run:
        return self.read(name, self.version(name))

    def model(self, name: str) -> Model:
        """Call it while holding `lock`."""
        return self.load(name, self.version(name))

    def listed(self) -> dict[str, Any]:
        writers = [run for run in self.by_id.values() if not run.is_classifier and run.has("test")]
        source = writers[0].read(SPLIT_FILES["test"][1])["text"][0] if writers else ""
        return {
            "runs": [self.facts(name) for name in self.by_id],
            "skipped": self.skipped,
            "source": source,
        }

    def facts(self, name: str) -> dict[str, Any]:
        run = self.by_id[name]
        split = "validation" if run.metrics.get("test_accuracy") is None else "test"
        return {
            "id": name,
            "label": self.labels[name],
            "seed": run.metrics["seed"],
            "folder": run.place,
            "kind": "classifier" if run.is_classifier else "encoder-decoder",
            "accuracy": run.metrics["test_accuracy" if split == "test" else "val_accuracy"],
            "split": split,
            "browsable": run.is_classifier
            and all((run.folder / file).exists() for file in SPLIT_FILES["test"]),
        }


def short_labels(found: Sequence[Variant]) -> list[str]:
    """The model of each variant, and overrides that distinguish it from other variants of the same
    model.

    Of overrides that the same variants have, the first is used: of a group (`data=reverse`) before
    a single setting.
    """
    labels = []
    for one in found:
        mates, first = (
            [other for other in found if other.model == one.model],
            dict[tuple[bool, ...], str](),
        )
        for word in sorted(one.overrides, key=lambda word: ("." in word, word)):
            first.setdefault(tuple(word in mate.overrides for mate in mates), in_short(word))
        labels.append(
            " ".join([one.model, *(word for having, word in first.items() if not all(having))])
        )
    return [
        one.label if labels.count(name) > 1 else name
        for one, name in zip(found, labels, strict=True)
    ]


def id_of(run: Run) -> str:
    """The same for the same folder, so that the address of a page can be used again."""
    digest = hashlib.sha256(str(Path(run.folder).resolve()).encode("utf-8", "replace")).hexdigest()[
        :6
    ]
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', run.model)}-s{run.metrics['seed']}-{digest}"
