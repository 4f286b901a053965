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
from imdbattn.errors import UserError, in_line
from imdbattn.io.files import expanded
from imdbattn.report.finished_runs import Run, Variant, find_runs, in_short, read_run, variants
from imdbattn.runs.run_folder import SPLIT_FILES
from imdbattn.tools.explore.onefile import Entry, check_out, write_page
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
        self.cfg = cfg
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
        """When its metrics.json was written, at the end of training. Raises UserError for a run
        that has been deleted, or that this server does not have.
        """
        if name not in self.by_id:
            raise UserError(f"this server has no run {in_line(name)}: reload the page")
        run = self.by_id[name]
        try:
            return (run.folder / "metrics.json").stat().st_mtime_ns
        except FileNotFoundError:
            raise UserError(
                f"{run.place} has been deleted or moved: start imdbattn.explore again"
            ) from None

    def run(self, name: str) -> Run:
        return self.read(name, self.version(name))

    def model(self, name: str) -> Model:
        """Call it while holding `lock`."""
        return self.load(name, self.version(name))

    def entry(self, name: str) -> Entry:
        """Returns a run as a model of a file. Call it while holding `lock`."""
        run = self.run(name)
        return Entry(self.labels[name], self.model(name).predictor, run.metrics, run)

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


def write_runs(runs: Runs, out: str) -> dict[str, Any]:
    """Writes a file with the runs that a browser can compute (see `onefile.write_page`), adds the
    others to `runs.skipped`, and returns facts about the file. Raises UserError if there is none.
    """
    check_out(expanded(out))  # before the models are loaded
    entries = []
    for name, run in runs.by_id.items():
        try:
            entry = runs.entry(name)
            entry.refuse()
            entries.append(entry)
        except UserError as error:
            runs.skipped.append({"folder": run.place, "reason": str(error)})
    if not entries:
        reasons = "; ".join(f"{one['folder']} ({one['reason']})" for one in runs.skipped)
        raise UserError(f"no run can be computed in the browser: {reasons}")
    cfg = runs.cfg
    return write_page(entries, out, cfg.words, cfg.precision, cfg.reviews)


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
