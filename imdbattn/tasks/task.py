"""The interface of a task. To add one, write a file like reviews.py and add a line to TASKS.

A task whose models are applied to new texts also has a line in tasks.predictor.PREDICTORS.
"""

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Any

from imdbattn.data.corpus import Corpus
from imdbattn.tasks.learner import Learner
from imdbattn.tasks.loaders import BatchData

TASKS = {
    "reviews": "imdbattn.tasks.reviews",
    "seq2seq": "imdbattn.tasks.seq2seq",
    "masked_words": "imdbattn.tasks.masked_words",
}


class Task(ABC):
    """The parts of a run that depend on its task. cfg: its settings (settings.schema)."""

    @abstractmethod
    def prepare(self, cfg: Any, trained: Learner | None = None, uncut: bool = False) -> Corpus:
        """The corpus that the `data` settings describe.

        trained: the model to score, whose labels or vocabularies are used. uncut: takes the splits as they are.
        Raises UserError for anything that cannot be read.
        """

    @abstractmethod
    def loaders(self, cfg: Any, corpus: Any, test_split: str = "test") -> BatchData:
        """The batches of a corpus."""

    @abstractmethod
    def new(self, cfg: Any, corpus: Any, resumed: dict[str, Any] | None = None) -> Learner:
        """An untrained model. resumed: content of the checkpoint that will be loaded into it."""

    @abstractmethod
    def load(self, cfg: Any, checkpoint: Path, corpus: Any = None) -> Learner:
        """The model of a checkpoint in evaluation mode. corpus: of the run, if available. Raises UserError."""

    def learner(self, predictor: Any) -> Learner:
        """The module that scores the net of a Predictor, for a task that has a Predictor."""
        raise NotImplementedError

    @abstractmethod
    def save_texts(self, corpus: Any, split: str, path: Path) -> None:
        """Writes the texts of a split as Parquet with `row` and `text`."""

    def draw(self, module: Any, corpus: Any, cfg: Any, folder: Path) -> None:  # noqa: B027
        """Draws pictures of a finished run into its folder; none unless overridden."""


def task_of(cfg: Any) -> Task:
    return import_module(TASKS[cfg.task]).TASK
