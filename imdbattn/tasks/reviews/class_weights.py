"""The factors of classes in the training loss, which the setting class_weights gives.

Shape suffixes: C classes.
"""

import torch
from torch import Tensor

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.errors import UserError


def class_weights(setting: str | list[float], corpus: ReviewCorpus) -> Tensor:
    """Returns the factor of each class in the training loss, (C,) float32.

    setting: class_weights. "balanced" gives N / (C x reviews of the class), whose mean over the N
    training reviews is 1, as in scikit-learn. Raises UserError for a list of another length.
    """
    classes = len(corpus.label_names)
    if setting == "balanced":
        counts_C = corpus.splits["train"].labels.bincount(minlength=classes)
        return len(corpus.splits["train"]) / (classes * counts_C.clamp(min=1)).float()
    if len(setting) != classes:
        names = ", ".join(corpus.label_names)
        raise UserError(
            f"class_weights has {len(setting)} factors, but there are {classes} classes ({names}):"
            " give one for each"
        )
    return torch.tensor(list(setting), dtype=torch.float32)
