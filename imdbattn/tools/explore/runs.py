"""The finished runs that the page shows, and their models; the models used last stay in memory."""

import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from imdbattn.data.sources.order_probe import SLOTS
from imdbattn.errors import UserError
from imdbattn.folders.run_folder import SPLIT_FILES
from imdbattn.io.files import with_home
from imdbattn.report.finished_runs import FinishedRun, as_skipped, find_runs
from imdbattn.report.variants import group_variants
from imdbattn.runs.apply import predictor_of_run
from imdbattn.settings.command_settings import ExploreSettings
from imdbattn.settings.keys import hexdigest
from imdbattn.tools.explore.onefile import (
    PageModel,
    lines_of,
    refuse_other_file,
    shown_result,
    test_reviews,
    write_page,
)

MOST_MODELS = 12  # models in memory
Answer = tuple[Mapping[str, object], Sequence[np.ndarray]]  # facts as JSON values, and numbers


class Message(BaseModel):
    """What the page sends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def answer(self, runs: "Runs") -> Answer:
        raise NotImplementedError


class Runs:
    """The finished runs in `options.runs`. Raises UserError if there is none."""

    def __init__(self, options: ExploreSettings):
        self.options = options
        runs, self.skipped = find_runs(options.runs)
        self.by_id: dict[str, FinishedRun] = {}
        self.labels: dict[str, str] = {}
        for variant in group_variants(runs):
            for run in variant.runs:
                self.by_id[run_id(run)] = run
                self.labels[run_id(run)] = variant.label
        # predictor(id of a run) returns its model. Call it while holding `lock`.
        self.predictor = lru_cache(MOST_MODELS)(self.load)
        # One model computes at a time: threads would compete for the processor, and explanations
        # change a model.
        self.lock = threading.Lock()

    def print_skipped(self) -> None:
        for skipped in self.skipped:
            print(f"skipped: {skipped['folder']} ({skipped['reason']})", file=sys.stderr)

    def load(self, name: str) -> Any:
        return predictor_of_run(self.by_id[name].folder, self.options)

    def page_model(self, name: str) -> PageModel:
        """Returns the model of a run for a page in one file. Call it while holding `lock`."""
        return PageModel(self.labels[name], self.predictor(name), self.by_id[name])

    def listed(self) -> dict[str, Any]:
        """Returns what the page shows before a run is chosen, the source of the first output, and
        the parts of the sentences of the order probe.
        """
        writers = [
            run for run in self.by_id.values() if not run.is_classifier and run.is_scored("test")
        ]
        source = writers[0].read(SPLIT_FILES["test"][1])["text"][0] if writers else ""
        return {
            "runs": [self.facts(name) for name in self.by_id],
            "skipped": self.skipped,
            "source": source,
            "slots": SLOTS,
        }

    def facts(self, name: str) -> dict[str, Any]:
        """Returns what the page lists of a run."""
        run = self.by_id[name]
        return {
            **shown_result(run.metrics),
            "id": name,
            "label": self.labels[name],
            "folder": run.path,
            "kind": "classifier" if run.is_classifier else "encoder-decoder",
            "browsable": run.is_classifier and run.is_scored("test"),
        }


class Reviews(Message):
    """Asks for the test reviews of a classifier, and how it labels them."""

    run: str

    def answer(self, runs: Runs) -> Answer:
        run = runs.by_id[self.run]
        predictions = run.predictions("test")
        assert predictions.predicted_N is not None
        facts = {
            "fingerprint": run.fingerprint("test"),
            "reviews": test_reviews(run, predictions),
            "labels": [run.labels[label] for label in predictions.predicted_N],
            "probabilities": predictions.confidence_N.tolist(),
        }
        return facts, []


def write_runs(options: ExploreSettings) -> None:
    """Writes one file with all runs that a browser can compute, and prints its contents."""
    out = with_home(str(options.out))
    refuse_other_file(out)  # this precedes the loading of models
    runs = Runs(options)
    models = []
    for name, run in runs.by_id.items():
        try:
            models.append(runs.page_model(name))
        except UserError as error:
            runs.skipped.append(as_skipped(run.folder, error))
    if not models:
        reasons = "; ".join(f"{skip['folder']} ({skip['reason']})" for skip in runs.skipped)
        raise UserError(f"no run can be computed in the browser: {reasons}")
    facts = write_page(models, out, options.words, options.precision, options.reviews)
    runs.print_skipped()
    print(*lines_of(facts), sep="\n")
    print(f"written: {options.out} ({facts['size'] / 1e6:.2f} MB)")


def run_id(run: FinishedRun) -> str:
    """Returns a name that depends on the folder only, so that addresses of the page stay valid."""
    return hexdigest({"folder": str(run.folder.resolve())})
