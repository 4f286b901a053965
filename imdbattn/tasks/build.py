"""Builds objects from settings, and reads checkpoints, which contain tensors and plain values, never code.

The only module that calls Hydra's `instantiate`.
"""

import importlib
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra.utils import instantiate
from torch import nn

from imdbattn.errors import UserError, in_line
from imdbattn.settings.keys import as_dict
from imdbattn.settings.safety import check_archive, targets

log = logging.getLogger(__name__)

PARTS = {"trainer.callbacks": L.Callback}  # lists of objects of another class than the rest of their group
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


def make(settings: Mapping[str, Any], what: str, kind: type) -> Any:
    """Calls `instantiate` if every `_target_` is a subclass of `kind`.

    settings: of the user, or of a run folder that `refuse_untrusted` has accepted.
    Raises UserError naming `what` for another target, and for errors of the class itself.
    """
    check_targets(settings, what.partition("=")[0], kind)  # model=residual is the group model
    allowed: dict[str, Any] = {}
    if "_execution_whitelist_" in inspect.signature(instantiate).parameters:  # since Hydra 1.4
        allowed["_execution_whitelist_"] = [*names_of(target for _, target in targets(settings))]
    try:
        return instantiate(settings, _convert_="all", **allowed)
    except Exception as error:
        log.debug("%s", what, exc_info=True)
        remedy = ": its settings need _partial_: true" if "required positional arg" in str(error) else ""
        raise UserError(f"{what}: {reason(error)}{remedy}") from error


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
            check_targets(value, place := f"{key}.{name}", PARTS.get(place, kind))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            check_targets(value, f"{key}[{number}]", kind)
    elif isinstance(node, str) and "${" in node:  # `instantiate` would resolve it
        raise UserError(f"{key} contains an interpolation (${{...}}): write its value instead")


def names_of(paths: Iterable[str]) -> Iterator[str]:
    """The dotted paths of classes, and the names by which the classes were defined."""
    for path in paths:
        found = locate(path)
        yield from (path, f"{found.__module__}.{found.__qualname__}")


def locate(path: str) -> Any:
    """The object with a dotted path. hydra.utils.get_object would also print an error."""
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


def load(
    checkpoint: Path,
    make_module: Callable[[dict[str, Any], dict[str, Any]], Any],
    content: Mapping[str, Any] | None = None,
) -> Any:
    """A module in evaluation mode with the weights of a checkpoint. make_module: called with its weights and facts.

    content: of the checkpoint, if it has been read already.

    Raises UserError for a file that is damaged, of another model or version, or contains weights that are not finite.
    """
    content = dict(read_checkpoint(checkpoint, REMEDY) if content is None else content)
    try:
        module = make_module(content["state_dict"], content["hyper_parameters"])
        module.on_load_checkpoint(content)
        load_weights(module, content["state_dict"])
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{checkpoint} cannot be loaded: {reason(error)[:300]}; {REMEDY}") from error
    return module.eval()


def names_in(facts: Mapping[str, Any], key: str) -> list[str]:
    """The names in a checkpoint. Raises ValueError unless they are a list of at least two different strings."""
    names = facts[key]
    texts = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    if not (texts and 1 < len(names) == len(set(names))):
        raise ValueError(f"its {key} are not a list of at least two different names")
    return names
