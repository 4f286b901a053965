"""The tasks: what differs between classifying reviews, writing sequences and guessing words; all else is the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imdbattn.data import pairs
from imdbattn.data.corpus import prepare, prepare_unlabelled
from imdbattn.run_folder import link_texts, write_table
from imdbattn.tasks import build
from imdbattn.tasks.draw import draw_guesser_run, draw_run, draw_writer_run
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData

Settings = Mapping[str, Any]


def keep_reviews(corpus: Any, split: str, path: Path) -> None:
    link_texts(corpus.texts(split), path)


@dataclass(frozen=True)
class Task:
    """How a run's parts are made from its settings."""

    prepare: Callable[[dict[str, Any]], Any]  # `data` settings -> corpus
    data: Callable[..., BatchData]  # settings, corpus (, which split is tested) -> batches
    new: Callable[[Settings, Any, Settings | None], Learner]  # settings, corpus, checkpoint to resume -> new module
    trained: Callable[[Settings, Path, Any], Learner]  # settings, checkpoint, corpus -> module in evaluation mode
    keep_texts: Callable[[Any, str, Path], None]  # corpus, split, file: puts the sources' texts into the run folder
    draw: Callable[[Any, Any, Settings, Path], None]  # module, corpus, settings, run folder: pictures


TASKS = {
    "reviews": Task(
        prepare,
        build.build_data,
        build.new_module,
        lambda cfg, checkpoint, corpus: build.trained_module(cfg, checkpoint, corpus.glove),
        keep_reviews,
        draw_run,
    ),
    "seq2seq": Task(
        pairs.prepare,
        build.build_pair_data,
        build.new_writer,
        lambda cfg, checkpoint, corpus: build.trained_writer(cfg, checkpoint),
        lambda corpus, split, path: write_table(
            path, {"row": corpus.splits[split].rows, "text": corpus.splits[split].texts}
        ),
        draw_writer_run,
    ),
    "masked_words": Task(
        prepare_unlabelled,
        build.build_data,
        build.new_guesser,
        lambda cfg, checkpoint, corpus: build.trained_guesser(cfg, checkpoint, corpus.glove),
        keep_reviews,
        draw_guesser_run,
    ),
}


def task_of(settings: Settings) -> Task:
    """Runs of earlier versions name none: they are of reviews."""
    return TASKS[settings.get("task", "reviews")]
