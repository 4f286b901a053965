"""The base class of trained models for new texts, which needs no Lightning."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn

from imdbattn.data.corpus import Corpus
from imdbattn.errors import UserError
from imdbattn.io.files import Metadata, SavedNet
from imdbattn.settings.command_settings import PredictSettings
from imdbattn.settings.schema import TrainingSettings
from imdbattn.tasks.prediction import Prediction


class Predictor(ABC):
    """A trained net that is applied to new texts; each Task names a subclass.

    omits_long: whether data.max_tokens omits longer items instead of cutting them.
    settings: the run's settings. net: is set to evaluation mode. metadata: see `Learner`.
    """

    omits_long = False

    def __init__(self, settings: TrainingSettings, net: nn.Module, metadata: Metadata):
        # Each task has its own classes of settings and net.
        self.settings: Any = settings
        self.net: Any = net.eval()
        self.metadata = metadata

    @classmethod
    @abstractmethod
    def load(cls, settings: Any, trained: SavedNet) -> Self:
        """Returns the model in a checkpoint."""

    @classmethod
    def mean_of(cls, members: Mapping[str, Any]) -> "Predictor":
        """Returns a model with the mean probabilities of several models, which `run` names."""
        raise UserError("run= names several runs: only classifiers have mean probabilities")

    @abstractmethod
    def corpus(self, data: Any, keep_splits: bool = False) -> Corpus:
        """Returns the corpus that `data` settings describe, read with this model's vocabulary.
        keep_splits: see `load_reviews`.
        """

    @abstractmethod
    def explain(self, text: str) -> Prediction:
        """Returns the result for one text with the weights of every attention."""

    @abstractmethod
    def predict(
        self, texts: Sequence[str], options: PredictSettings, first: int = 0
    ) -> Iterator[Prediction]:
        """Returns a result for each text. first: number of the first text."""

    def warning(self, count: int, unread: Counter[str]) -> str:
        """Returns a line about what could not be read in `count` texts, and how often. unread:
        counts of `Prediction.unread`.
        """
        return f"not read in {count} texts: {', '.join(unread)}"

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.net.parameters()), torch.device("cpu"))
