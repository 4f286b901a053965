"""The base class of trained models that are applied to new texts: plain torch, without
Lightning.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from imdbattn.io.checkpoint import Facts, Trained, read_checkpoint
from imdbattn.tasks.task import task_of


class Predictor(ABC):
    """A trained net that is applied to new texts; conf/task/ names the class of each task.

    omits_long: whether data.max_tokens omits longer items instead of cutting them.
    cfg: the settings of its run. net: in evaluation mode from now on. facts: see `Learner`.
    """

    omits_long = False

    def __init__(self, cfg: Any, net: Any, facts: Facts):
        self.cfg, self.net, self.facts = cfg, net.eval(), facts

    @classmethod
    @abstractmethod
    def load(cls, cfg: Any, trained: Trained) -> Self:
        """The model of a checkpoint."""

    @abstractmethod
    def corpus(self, data: Any, keep_splits: bool = False) -> Any:
        """The corpus that `data` settings describe, read with this model's vocabulary. keep_splits:
        see `prepare`.
        """

    @abstractmethod
    def explain(self, text: str) -> Any:
        """The result for one text with the weights of every attention."""

    @abstractmethod
    def predict(self, texts: Sequence[str], options: Any, first: int = 0) -> Iterator[Any]:
        """A result (explain.prediction) for each text. options: Predict settings. first: number of
        the first text.
        """

    @abstractmethod
    def columns(self, texts: Sequence[str], options: Any, first: int = 0) -> dict[str, list[Any]]:
        """The same as columns of a table."""

    @abstractmethod
    def warnings(self) -> list[str]:
        """Warnings about the texts since the last call."""

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.net.parameters()), torch.device("cpu"))


def load(cfg: Any, checkpoint: Path) -> Predictor:
    """The model of a checkpoint. cfg: the settings of its run."""
    kind: type[Predictor] = task_of(cfg).part("predictor", Predictor)
    return kind.load(cfg, Trained.of(read_checkpoint(checkpoint)))
