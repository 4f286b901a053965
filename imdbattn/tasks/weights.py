"""Reads checkpoints, which contain tensors and plain values, never code."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.errors import UserError
from imdbattn.settings.safety import check_archive

RENAMED = re.compile(r"^(net\.(?:encoder\.)?)((?:phrases|channels|convolution)\.)")  # weights in earlier versions


def read_checkpoint(path: Path, way_out: str) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Raises UserError if the file is damaged, compressed, or contains anything but tensors and plain values.
    """
    try:
        check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError("it is not a checkpoint")
        weights = content.get("state_dict", {})
        for name in [name for name in weights if RENAMED.match(name)]:
            weights[RENAMED.sub(r"\1context.\2", name)] = weights.pop(name)
        return content
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        if "weights_only" in str(error):  # torch advises to load the file with weights_only=False
            reason = "it contains something other than tensors and plain values"
        raise UserError(f"{path} cannot be read: {reason}; {way_out}") from error


def load_weights(module: nn.Module, weights: Mapping[str, Any], strict: bool = True) -> None:
    """Loads weights into a module. Raises an error unless they fit and are finite."""
    integers = {name: weight.clone() for name, weight in module.state_dict().items() if not weight.is_floating_point()}
    module.load_state_dict(weights, strict=strict)
    check_weights(module.state_dict(), integers)


def check_weights(weights: Mapping[str, Tensor], integers: Mapping[str, Tensor]) -> None:
    """Raises ValueError if weights are not finite, or if integers differ from the module's own.

    Integers in a module index rows of its tables: other integers could be out of range.
    """
    for name, weight in weights.items():
        if weight.is_floating_point():
            if not weight.isfinite().all():
                raise ValueError(f"the weights {name} are not finite")
        elif not torch.equal(weight, integers[name]):
            raise ValueError(f"{name} points to other rows than the model has")
