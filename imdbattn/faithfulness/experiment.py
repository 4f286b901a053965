"""Measures all runs, and reads the measurements of each set of runs with the same reviews."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from imdbattn.comparison.runs import Run, find_runs, grouped, skip
from imdbattn.errors import UserError
from imdbattn.faithfulness.attributions import attention_weights
from imdbattn.faithfulness.measure import Part, measure, parts_of
from imdbattn.faithfulness.subject import Subject
from imdbattn.faithfulness.summary import Tables, summarize
from imdbattn.files import make_folder
from imdbattn.runs.process import keep_memory, use_onednn
from imdbattn.settings.schema import Faithfulness

Job = tuple[Subject, list[Part]]  # a run, and what is measured on it


def run_experiment(folders: Sequence[str], out: Path, cfg: Faithfulness) -> list[dict[str, Any]]:
    """Measures the classifiers in `folders` and returns a summary for each set of reviews (faithfulness/summary).

    Raises UserError if there is none, or if `out` cannot be written.
    """
    use_onednn()
    keep_memory()
    if "integrated_gradients" in cfg.scores:
        import captum.attr  # noqa: F401  # it is missed before anything is measured
    runs, skipped = find_runs(folders)
    jobs = []
    for run in runs:
        try:
            jobs.append(prepare(run, out, cfg))
        except (UserError, OSError) as error:  # such as data that are not on this machine
            skipped.append(skip(run.folder, error))
    if not jobs:
        raise UserError(f"no run can be measured: {skipped[-1]['folder']} ({skipped[-1]['reason']})")
    make_folder(out, "choose another folder")
    measure_all(jobs)

    def fingerprint(job: Job) -> str:
        return job[0].corpus.fingerprints[cfg.split]

    return [
        summarize([(subject.run, tables(subject, parts)) for subject, parts in group], fingerprint(group[0]), cfg)
        | {"skipped": skipped}
        for group in grouped(jobs, fingerprint)
    ]


def prepare(run: Run, out: Path, cfg: Faithfulness) -> Job:
    """Raises UserError if the run cannot be measured."""
    if not run.is_classifier:
        raise UserError("an encoder-decoder, which has no label to explain")
    subject = Subject(run, out, cfg)
    attention_weights(subject.net, next(subject.items(1, 1))[1])  # raises UserError if a part does not record them
    return subject, parts_of(subject, cfg)


def measure_all(jobs: Sequence[Job]) -> None:
    """With a progress bar over the reviews of all parts."""
    total = sum(part.reviews for _, parts in jobs for part in parts)
    with tqdm(total=total, unit=" reviews", dynamic_ncols=True, smoothing=0) as bar, torch.no_grad():
        for subject, parts in jobs:
            for part in parts:
                name = f"{subject.run.model} seed {subject.run.metrics['seed']}, {part.name}"
                bar.set_description(name, refresh=False)
                measure(subject, part, bar.update)


def tables(subject: Subject, parts: Sequence[Part]) -> Tables:
    """The measurements by name of the part, without those that have no rows."""
    measured = {part.name: pq.read_table(subject.folder / part.file) for part in parts}
    return {name: table for name, table in measured.items() if len(table)}
