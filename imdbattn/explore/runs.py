"""The finished runs that the page shows, and their models; the models used last stay in memory."""

import hashlib
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imdbattn.api.model import Model, load
from imdbattn.comparison.runs import Run, find_runs, read_run, variants
from imdbattn.errors import UserError
from imdbattn.run_folder import SPLIT_FILES
from imdbattn.settings.schema import Explore

LOADED = 12  # models in memory
SHOWN = 3  # classifiers that are selected when the page is opened: the first, the middle and the last rung


class Runs:
    """The finished runs in `folders`. Raises UserError if there is none."""

    def __init__(self, folders: Sequence[str], cfg: Explore):
        runs, self.skipped = find_runs(folders)
        self.cfg, self.variants = cfg, variants(runs)
        self.by_id: dict[str, Run] = {}
        self.labels: dict[str, str] = {}
        for variant in self.variants:
            for run in variant.runs:
                name = id_of(run)
                self.by_id[name], self.labels[name] = run, variant.label
        self.versions = {name: modified(run) for name, run in self.by_id.items()}
        self.loaded: dict[str, tuple[Any, Any]] = {}  # name -> version of the run, model; last used last
        # One model computes at a time: threads would compete for the processor, and explanations change a model.
        self.lock, self.browsing = threading.Lock(), threading.Lock()

    def title(self, name: str) -> str:
        return f"{self.labels[name]}, seed {self.by_id[name].metrics['seed']}"

    def run(self, name: str) -> Run:
        """The run, read again if it has been trained again. Raises UserError if it is unknown or deleted."""
        if name not in self.by_id:
            raise UserError(f"there is no run {name[:100]}: start imdbattn.explore with the folder that contains it")
        if (version := modified(self.by_id[name])) != self.versions[name]:
            self.by_id[name], self.versions[name] = read_run(self.by_id[name].folder), version
        return self.by_id[name]

    def model(self, name: str) -> Model:
        """The model of a run, loaded again if the run has been trained again. Call it while holding `lock`."""
        run, version = self.run(name), self.versions[name]
        loaded_version, model = self.loaded.pop(name, (None, None))
        if loaded_version != version:
            model = load(run.folder, self.cfg.trust, **self.cfg.data.model_dump())
        self.loaded[name] = version, model
        while len(self.loaded) > LOADED:
            del self.loaded[next(iter(self.loaded))]
        return model

    def listed(self) -> dict[str, Any]:
        first = [id_of(variant.runs[0]) for variant in self.variants]
        classifiers = [name for name in first if self.by_id[name].is_classifier]
        writers = [name for name in first if name not in classifiers]
        runs = [self.facts(name) for name in self.by_id]
        places = np.linspace(0, max(0, len(classifiers) - 1), min(SHOWN, len(classifiers))).round().astype(int)
        selected = [classifiers[place] for place in places] + writers[:1]
        sources = self.by_id[writers[0]].texts("test") if writers else None
        source = sources[0] if sources else ""  # an example for the encoder-decoders
        return {"runs": runs, "skipped": self.skipped, "selected": selected, "source": source}

    def facts(self, name: str) -> dict[str, Any]:
        run = self.by_id[name]
        accuracy = run.metrics.get("test_accuracy")
        return {
            "id": name,
            "label": self.labels[name],
            "seed": run.metrics["seed"],
            "folder": run.place,
            "kind": "classifier" if run.is_classifier else "encoder-decoder",
            "accuracy": run.metrics["val_accuracy"] if accuracy is None else accuracy,
            "split": "validation" if accuracy is None else "test",
            "browsable": run.is_classifier and all((run.folder / file).exists() for file in SPLIT_FILES["test"]),
        }


def modified(run: Run) -> int:
    """When its metrics.json was written, which is at the end of training."""
    try:
        return (run.folder / "metrics.json").stat().st_mtime_ns
    except FileNotFoundError:
        raise UserError(f"{run.place} is no longer a finished run: train it again, or hide it") from None


def id_of(run: Run) -> str:
    """The same for the same folder, so that the address of a page can be used again."""
    digest = hashlib.sha256(str(Path(run.folder).resolve()).encode("utf-8", "replace")).hexdigest()[:6]
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', run.model)}-s{run.metrics['seed']}-{digest}"
