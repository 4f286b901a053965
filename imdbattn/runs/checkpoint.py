"""Checkpoint files: written whole, verified when read, and checked value by value before a run resumes from them.

A checkpoint may come from anywhere. It holds tensors and plain values, never code.
"""

import io
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from imdbattn.errors import UserError
from imdbattn.files import write_atomically
from imdbattn.runs.callbacks import Throughput
from imdbattn.settings.safety import check_archive

LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
RESTART = "delete it, and resume= starts the run again"


def read_checkpoint(path: Path, way_out: str = RESTART) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Raises UserError for a file that is damaged, compressed, or holds anything but tensors and plain values.
    """
    try:
        check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise ValueError("it is not a checkpoint")
        return content
    except Exception as error:
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        if "weights_only" in str(error):  # torch's advice to load it all the same
            why = "it holds something other than tensors and plain values"
        raise UserError(f"{path} cannot be read: {why}; {way_out}") from error


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints whole or not at all, and reads them by `read_checkpoint`."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Raises UserError where the disk is full or the folder is read-only, and for a callback's state that could not
        be read again; an older file stays whole.
        """
        states = io.BytesIO()
        torch.save(checkpoint.get("callbacks"), states)
        try:
            torch.load(io.BytesIO(states.getvalue()), weights_only=True)
        except Exception as error:
            way_out = "return only those from its state_dict()"
            raise UserError(f"a callback's state is not made of tensors and plain values: {way_out}") from error
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        write_atomically(Path(path), buffer.getvalue())

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
        return read_checkpoint(Path(path))


def load_weights(module: torch.nn.Module, weights: Mapping[str, Any], strict: bool = True) -> None:
    """Loads weights into a module built for them. Raises an error unless they fit and are finite."""
    own = {name: weight.clone() for name, weight in module.state_dict().items() if not weight.is_floating_point()}
    module.load_state_dict(weights, strict=strict)
    check_weights(module.state_dict(), own)


def check_weights(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raises ValueError for weights that are NaN or infinite, and for whole numbers other than the module's own.

    Whole numbers in a module are places in its tables: others would point beyond them.
    """
    for name, weight in weights.items():
        if weight.is_floating_point():
            if not weight.isfinite().all():
                raise ValueError(f"the weights {name} are not finite")
        elif not torch.equal(weight, own[name]):
            raise ValueError(f"{name} points to other rows than the model has")


def check_state(
    content: Mapping[str, Any], module: L.LightningModule, optimizer: torch.optim.Optimizer, trainer: L.Trainer
) -> None:
    """Checks everything in last.ckpt that a run resumes from, beside what Keeper looks at itself.

    Args:
        content: of the checkpoint.
        module: the run's, with new weights.
        optimizer: one like the run's own, after one step.
        trainer: with all callbacks.

    Raises:
        ValueError: naming a part that is missing, or has another type, shape or range than a part of this run.
    """
    loops = {name: getattr(trainer, name).state_dict() for name in LOOPS}
    template = {"epoch": 0, "global_step": 0, "loops": loops, "state_dict": module.state_dict()}
    for name, part in template.items():
        check_like(part_of(content, name), part, name)
    check_weights(content["state_dict"], module.state_dict())
    (saved,), ours = part_of(content, "optimizer_states", list), optimizer.state_dict()
    states = part_of(saved, "state", dict)
    if not states.keys() <= ours["state"].keys() or (content["global_step"] and ours["state"] and not states):
        raise ValueError("optimizer_states has states of other parameters, or of none")
    for number, state in states.items():
        first = ours["state"][number]  # after one step; LBFGS has more after others
        check_like({name: part_of(state, name) for name in first}, first, f"optimizer_states.{number}")
        check_finite([state[name] for name in state.keys() - first.keys()], f"optimizer_states.{number}")
    free = {"lr", "initial_lr", "fused", "foreach"}  # by the schedule and the device
    for group, own in zip(part_of(saved, "param_groups", list), ours["param_groups"], strict=True):
        if any(part_of(group, name) != own[name] for name in own.keys() - free):
            raise ValueError("optimizer_states has other settings than the run")
    (schedule,) = part_of(content, "lr_schedulers", list)
    rates = [group["lr"] for group in ours["param_groups"]]
    for name, like in {"last_epoch": 0, "_step_count": 0, "base_lrs": rates, "_last_lr": rates}.items():
        check_like(part_of(schedule, name), like, f"lr_schedulers.{name}")
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if type(callback) in (EarlyStopping, ModelCheckpoint, Throughput):  # a user's may keep whatever it wants
            state = part_of(part_of(content, "callbacks", dict), callback.state_key, dict)
            check_callback(state, callback.state_dict(), callback.state_key.partition("{")[0])


def part_of(content: Any, name: Any, kind: type = object) -> Any:
    """content[name]. Raises ValueError where there is none, or of another kind."""
    if not isinstance(content, Mapping) or not isinstance(content.get(name), kind) or name not in content:
        raise ValueError(f"it has no {name}, or one of another kind")
    return content[name]


def check_like(value: Any, template: Any, name: str) -> None:
    """Raises ValueError unless a value has the structure, types and shapes of `template`, and only finite numbers.

    Whole numbers are counts: at least 0.
    """
    if isinstance(template, Mapping):
        if not isinstance(value, Mapping) or value.keys() != template.keys():
            raise ValueError(f"{name} has other parts than in this run: is it of another model?")
        for key in template:
            check_like(value[key], template[key], f"{name}.{key}")
    elif isinstance(template, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(template):
            raise ValueError(f"{name} is not a list of {len(template)}")
        for place, part in enumerate(template):
            check_like(value[place], part, f"{name}[{place}]")
    elif isinstance(template, Tensor):
        if not isinstance(value, Tensor) or (value.shape, value.dtype) != (template.shape, template.dtype):
            raise ValueError(f"{name} is not a tensor of {template.dtype} and shape {tuple(template.shape)}")
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"{name} is not finite")
    elif type(template) is float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} is not a finite number")
    elif type(value) is not type(template) or (type(value) is int and value < 0):
        raise ValueError(f"{name} is not of type {type(template).__name__}, or below 0")


def check_finite(value: Any, name: str) -> None:
    """Raises ValueError unless a value is made of lists, and of tensors and numbers that are finite, or None."""
    if isinstance(value, (list, tuple)):
        for part in value:
            check_finite(part, name)
    elif value is not None and not torch.as_tensor(value).isfinite().all():
        raise ValueError(f"{name} is not finite")


def check_callback(state: Mapping[str, Any], template: Mapping[str, Any], name: str) -> None:
    """As check_like for the state of a callback, where a score, or a reason to stop, is None until there is one."""
    if state.keys() != template.keys():
        raise ValueError(f"{name} has other parts than in this run")
    for key, value in state.items():
        scores = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
        kinds = (Tensor, str, type(None)) if template[key] is None else (type(template[key]),)
        below = type(value) is int and value < 0
        if not isinstance(value, kinds) or below or any(map(not_a_score, scores)):
            raise ValueError(f"{name}.{key} is not a value that a run saves")


def not_a_score(value: Any) -> bool:
    """Whether a value is a tensor of other than one number, or NaN; Lightning starts from an infinite score."""
    if isinstance(value, Tensor):
        return value.numel() != 1 or bool(value.isnan())
    return not isinstance(value, (int, float, str, type(None))) or value != value


def place_checkpoints(callback: ModelCheckpoint, state: dict[str, Any]) -> None:
    """Moves the paths in a callback's saved state into its folder of today: the run folder may have been moved.

    Raises ValueError for a path that the callback does not write: Lightning deletes the files that these paths name.
    """
    folder, before = Path(callback.dirpath or ""), Path(state["dirpath"])
    fixed = callback.filename if callback.filename and "{" not in callback.filename else None

    def placed(path: str) -> str:
        if not path:
            return path
        parts = (Path(path).relative_to(before) if Path(path).is_relative_to(before) else Path(Path(path).name)).parts
        safe = parts and parts[-1].endswith(".ckpt") and not any(part.startswith(".") for part in parts)
        known = fixed is None or re.fullmatch(re.escape(fixed) + r"(-v\d+)?\.ckpt", "/".join(parts))
        if not safe or not known or parts == ("last.ckpt",):  # which Keeper writes
            raise ValueError(f"{path!r} is not the name of a checkpoint of this run")
        return str(folder.joinpath(*parts))

    state["dirpath"] = str(folder)
    state["best_k_models"] = {placed(path): score for path, score in state["best_k_models"].items()}
    for name in ("best_model_path", "kth_best_model_path"):
        state[name] = placed(state[name])
    state["last_model_path"] = ""
