"""Checkpoints: the weights of a net, and what it was trained with.

torch is imported when a file is read, because it is slow to import.
"""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from imdbattn.errors import naming

if TYPE_CHECKING:
    from torch import Tensor

Weights = Mapping[str, "Tensor"]  # of a net, by name
Facts = Mapping[str, Any]


class Trained(NamedTuple):
    """The weights in a checkpoint, by their names in the net, and its facts (see `Learner`)."""

    weights: Weights
    facts: Facts

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Takes them from the content of a checkpoint."""
        state, facts = content["state_dict"], content["hyper_parameters"]
        return cls(
            {name.removeprefix("net."): weight for name, weight in state.items()},
            {name: value for name, value in facts.items() if name != "config"},
        )


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Returns the content of a checkpoint, on the CPU.

    Raises UserError for anything but tensors and plain values.
    """
    import torch

    with naming(f"{path} cannot be read", "delete it and train again"):
        # torch.save writes checksums, which torch.load ignores
        with zipfile.ZipFile(path) as archive:
            if damaged := archive.testzip():
                raise ValueError(f"it is damaged, the checksum of {damaged} does not match")
        try:
            content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:  # whose message says how to load it nevertheless
            raise ValueError("it contains something other than tensors and plain values") from error
    return content
