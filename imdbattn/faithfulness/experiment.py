"""Measures all runs, and reads the measurements of each set of runs with the same reviews."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from imdbattn.comparison.runs import Run, find_runs, grouped, skip
from imdbattn.errors import UserError, in_line
from imdbattn.faithfulness.attributions import attention_weights, import_captum
from imdbattn.faithfulness.measure import Part, folder_of, measure, parts_of
from imdbattn.faithfulness.subject import Subject
from imdbattn.faithfulness.summary import summarize
from imdbattn.files import make_folder
from imdbattn.runs.trainer import keep_memory, quiet, use_onednn
from imdbattn.settings.schema import Faithfulness


@dataclass(frozen=True)
class Job:
    """The measurements of a run, and the folder of their files."""

    run: Run
    subject: Subject
    parts: Sequence[Part]
    folder: Path

    def tables(self) -> dict[str, pa.Table]:
        """The tables of the parts by name; without those that have no rows."""
        tables = {}
        for part in self.parts:
            try:
                table = pq.read_table(self.folder / part.file)
            except (OSError, pa.ArrowException) as error:
                message = f"{self.folder / part.file} cannot be read ({in_line(error)}): delete it and run again"
                raise UserError(message) from error
            if len(table):
                tables[part.name] = table
        return tables


def run_experiment(folders: Sequence[str], out: Path, cfg: Faithfulness) -> list[dict[str, Any]]:
    """Measures the classifiers in `folders` and returns a summary for each set of reviews (faithfulness/summary).

    Raises UserError if there is none, or if `out` cannot be written.
    """
    quiet()
    use_onednn()
    keep_memory()
    if "integrated_gradients" in cfg.scores:
        import_captum()
    runs, skipped = find_runs(folders)
    jobs = []
    for run in runs:
        try:
            jobs.append(prepared(run, out, cfg))
        except UserError as error:
            skipped.append(skip(run.folder, error))
    if not jobs:
        raise UserError(f"no run can be measured: {skipped[-1]['folder']} ({skipped[-1]['reason']})")
    make_folder(out, "choose another folder")
    measure_all(jobs)

    def fingerprint(job: Job) -> str:
        return job.subject.corpus.fingerprints[cfg.split]

    return [
        summarize([(job.run, job.tables()) for job in group], fingerprint(group[0]), cfg) | {"skipped": skipped}
        for group in grouped(jobs, fingerprint)
    ]


def prepared(run: Run, out: Path, cfg: Faithfulness) -> Job:
    """Raises UserError if the run cannot be measured."""
    if not run.is_classifier:
        raise UserError("an encoder-decoder, which has no label to explain")
    if run.metrics.get("cross_validation"):
        raise UserError("a fold of a cross-validation: its test reviews differ from those of the other folds")
    subject = Subject(run.folder, cfg)
    attention_weights(subject.net, next(subject.items(1, 1))[1])  # refuses a part that does not record them
    return Job(run, subject, parts_of(subject, cfg), folder_of(subject, out))


def measure_all(jobs: Sequence[Job]) -> None:
    """With a progress bar over the reviews of all parts."""
    total = sum(part.reviews for job in jobs for part in job.parts)
    with tqdm(total=total, unit=" reviews", dynamic_ncols=True, smoothing=0) as bar, torch.no_grad():
        for job in jobs:
            name = f"{job.run.model} seed {job.run.metrics['seed']}"

            def progress(part: str, reviews: int, name: str = name) -> None:
                bar.set_description(f"{name}, {part}", refresh=False)
                bar.update(reviews)

            measure(job.subject, job.parts, job.folder, progress)
