"""Builds objects from settings, and reads checkpoints, which contain tensors and plain values, never code."""

import importlib
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from imdbattn.errors import UserError, in_line
from imdbattn.settings.keys import as_dict
from imdbattn.settings.safety import check_archive

log = logging.getLogger(__name__)

Weights = Mapping[str, Tensor]  # of a net, by name
Facts = Mapping[str, Any]
REMEDY = "train again, or use the version that its environment.json names"


def read_checkpoint(path: Path, remedy: str) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Raises UserError if the file is damaged, compressed, or contains anything but tensors and plain values.
    """
    try:
        check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError("it is not a checkpoint")
        return content
    except Exception as error:
        problem = str(error).strip().partition("\n")[0] or type(error).__name__
        if "weights_only" in str(error):  # torch advises to load the file with weights_only=False
            problem = "it contains something other than tensors and plain values"
        raise UserError(f"{path} cannot be read: {problem}; {remedy}") from error


def load_weights(module: nn.Module, weights: Mapping[str, Any], strict: bool = True) -> None:
    """Loads weights into a module. Raises an error unless they fit and are finite.

    Vectors of integers index rows of the module's tables: others than its own are refused.
    """
    integers = {name: weight.clone() for name, weight in module.state_dict().items() if not weight.is_floating_point()}
    module.load_state_dict(weights, strict=strict)
    for name, weight in module.state_dict().items():
        if weight.is_floating_point():
            if not weight.isfinite().all():
                raise ValueError(f"the weights {name} are not finite")
        elif weight.ndim and not torch.equal(weight, integers[name]):  # BatchNorm counts its batches
            raise ValueError(f"{name} points to other rows than the model has")


def check_vectors(name: str, trained_on: Any, current: Any) -> None:
    """Raises UserError if weights belong to other vectors, given by their fingerprints: ids denote other words."""
    if trained_on != current:
        raise UserError(
            f"{name} was trained on vectors with fingerprint {trained_on}, but these have {current}: set data.glove as "
            "in its run folder's config.yaml"
        )


def make(settings: Any, what: str, kind: type) -> Any:
    """Calls `instantiate` if every `_target_` is a subclass of `kind`.

    settings: of the user, or of a run folder that `refuse_untrusted` has accepted.
    Raises UserError naming `what` for another target, and for errors of the class itself.
    """
    check_targets(settings, what.partition("=")[0], kind)  # model=residual is the group model
    try:
        return instantiate(settings)
    except Exception as error:
        log.debug("%s", what, exc_info=True)
        remedy = ": its settings need _partial_: true" if "required positional arg" in str(error) else ""
        raise UserError(f"{what}: {reason(error)}{remedy}") from error


def instantiate(node: Any) -> Any:
    """Settings with each group that has a `_target_` replaced by an object of that class.

    The other settings of the group are its arguments; with `_partial_: true` it is a functools.partial instead.
    """
    if isinstance(node, list):
        return [instantiate(value) for value in node]
    if not isinstance(node, Mapping):
        return node
    values = {name: instantiate(value) for name, value in node.items()}
    if (target := values.pop("_target_", None)) is None:
        return values
    is_partial, found = values.pop("_partial_", False), locate(target)
    return partial(found, **values) if is_partial else found(**values)


def check_targets(node: Any, key: str, kind: type) -> None:
    """Raises UserError for a `_target_` that cannot be imported, or is not a subclass of `kind`."""
    if isinstance(node, Mapping):
        if (target := node.get("_target_")) is not None:
            try:
                located = locate(target)
            except Exception as error:  # of any kind, raised by the module
                line = f"{key}._target_={target} cannot be imported: {reason(error)}"
                if line.endswith(f"No module named '{str(target).partition('.')[0]}'"):
                    line += ": install that package (pip install -e .), or add its folder to PYTHONPATH"
                raise UserError(line) from error
            if not (isinstance(located, type) and issubclass(located, kind)):
                raise UserError(f"{key}._target_={target} is not a subclass of {kind.__module__}.{kind.__name__}")
        for name, value in node.items():
            check_targets(value, f"{key}.{name}", kind)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            check_targets(value, f"{key}[{number}]", kind)
    elif isinstance(node, str) and "${" in node:
        raise UserError(f"{key} contains an interpolation (${{...}}): write its value instead")


def locate(path: str) -> Any:
    """The object with a dotted path."""
    first, *names = path.split(".")
    found: Any = importlib.import_module(first)
    for number, name in enumerate(names, 1):
        if not hasattr(found, name):
            importlib.import_module(".".join([first, *names[:number]]))
        found = getattr(found, name)
    return found


def reason(error: BaseException) -> str:
    """The innermost cause of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return in_line(error, None)


def make_net(model: Any, others: Collection[str], *arguments: Any, **options: Any) -> torch.nn.Module:
    """The net that the `model` settings describe. others: settings that are not arguments of its class.

    Raises UserError naming the model.
    """
    parts = {key: value for key, value in as_dict(model).items() if key not in ("name", "after", *others)}
    try:
        return make(parts, f"model={model.name}", torch.nn.Module)(*arguments, **options)
    except (TypeError, ValueError, AttributeError, KeyError, RuntimeError) as error:  # RuntimeError: out of memory
        raise UserError(f"model={model.name}: {reason(error)}") from error


def load_net(
    file: Path, make_net: Callable[[Weights, Facts], nn.Module], content: tuple[Weights, Facts] | None = None
) -> tuple[Any, Facts]:
    """A net in evaluation mode with the weights of a checkpoint, and its facts (see `Learner`).

    make_net: called with both. content: both, if they have been read from `file` already.

    Raises UserError for a file that is damaged, of another model or version, or contains weights that are not finite.
    """
    try:
        weights, facts = content or weights_and_facts(read_checkpoint(file, REMEDY))
        net = make_net(weights, facts)
        load_weights(net, weights)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{file} cannot be loaded: {reason(error)[:300]}; {REMEDY}") from error
    return net.eval(), facts


def weights_and_facts(checkpoint: Mapping[str, Any]) -> tuple[Weights, Facts]:
    """The weights in the content of a checkpoint, by their names in the net, and its facts (see `Learner`)."""
    weights = {name.removeprefix("net."): weight for name, weight in checkpoint["state_dict"].items()}
    return weights, {name: value for name, value in checkpoint["hyper_parameters"].items() if name != "config"}


def names_in(facts: Mapping[str, Any], key: str) -> list[str]:
    """The names in a checkpoint. Raises ValueError unless they are a list of at least two different strings."""
    names = facts[key]
    texts = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    if not (texts and 1 < len(names) == len(set(names))):
        raise ValueError(f"its {key} are not a list of at least two different names")
    return names
