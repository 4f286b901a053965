"""The scores of a classifier.

Shape suffixes: N reviews of a split, C classes.
"""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy

from imdbattn.per_class import confusion, details


@dataclass(frozen=True)
class Scores:
    """The outputs of a classifier for the reviews of a split."""

    rows_N: Tensor  # indices in the split, ascending
    labels_N: Tensor
    lengths_N: Tensor  # tokens read
    logits_NC: Tensor

    @property
    def accuracy(self) -> float:
        classes = self.logits_NC.shape[1]
        return multiclass_accuracy(self.logits_NC, self.labels_N, num_classes=classes, average="micro").item()

    @property
    def loss(self) -> float:
        return F.cross_entropy(self.logits_NC, self.labels_N).item()

    def values(self) -> dict[str, float]:
        """For the log and metrics.json."""
        return {"accuracy": self.accuracy, "loss": self.loss}

    def details(self) -> dict[str, Any]:
        """For metrics.json: scores of each class."""
        classes = self.logits_NC.shape[1]
        return details(confusion(self.labels_N.numpy(), self.logits_NC.argmax(1).numpy(), classes))

    def columns(self) -> dict[str, Any]:
        """For predictions.parquet: label, predicted class, its probability, all probabilities, number of tokens."""
        probabilities_NC = self.logits_NC.double().softmax(1)
        probability_N, predicted_N = probabilities_NC.max(1)
        return {
            "label": self.labels_N.numpy(),
            "predicted": predicted_N.numpy(),
            "probability": probability_N.numpy(),
            "probabilities": list(probabilities_NC.numpy()),
            "length": self.lengths_N.numpy(),
        }
