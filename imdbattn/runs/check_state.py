"""Checks last.ckpt before a run resumes: it may be damaged, of another run, or written by someone else."""

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from imdbattn.runs.callbacks import Throughput
from imdbattn.tasks.weights import check_weights

LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
CALLBACKS = (EarlyStopping, ModelCheckpoint, Throughput)  # others, of the user, may save any values
BY_SCHEDULE_OR_DEVICE = {"lr", "initial_lr", "fused", "foreach"}  # settings of an optimiser that may differ


def check_state(
    content: Mapping[str, Any], module: L.LightningModule, optimizer: torch.optim.Optimizer, trainer: L.Trainer
) -> None:
    """Raises ValueError naming a part of a checkpoint that is missing, or that a run with these settings cannot save.

    Args:
        content: of the checkpoint.
        module: the run's, with initial weights.
        optimizer: one like the run's own, after one step.
        trainer: with all callbacks.
    """
    own = optimizer.state_dict()
    rates = [group["lr"] for group in own["param_groups"]]
    callbacks = {one.state_key: one.state_dict() for one in trainer.callbacks if type(one) in CALLBACKS}  # type: ignore[attr-defined]
    rank = {"random": torch.get_rng_state(), "sums": []}
    template = {
        "epoch": 0,
        "global_step": 0,
        "loops": {name: getattr(trainer, name).state_dict() for name in LOOPS},
        "state_dict": module.state_dict(),
        "optimizer_states": [{"state": {}, "param_groups": [{} for _ in rates]}],
        "lr_schedulers": [{"last_epoch": 0, "_step_count": 0, "base_lrs": rates, "_last_lr": rates}],
        "callbacks": callbacks,
        "keeper": {"ranks": [rank] * trainer.world_size, "stopped": False, "curve": ""},
    }
    check_like(content, template, "it")
    if content["state_dict"].keys() != module.state_dict().keys():
        raise ValueError("state_dict has weights of another model")
    check_weights(content["state_dict"], module.state_dict())
    check_optimizer(content["optimizer_states"][0], own, content["global_step"])
    for name in template.keys() - {"callbacks"}:
        if not all(number.isfinite().all() for number in numbers(content[name])):
            raise ValueError(f"{name} has numbers that are not finite")
    for key in callbacks:
        if not all(number.numel() == 1 and not number.isnan() for number in numbers(content["callbacks"][key])):
            raise ValueError(f"the state of {key.partition('{')[0]} has a score that is not a number")
    for saved in content["keeper"]["ranks"]:
        torch.Generator().set_state(saved["random"])  # raises an error for an invalid state
        check_like(saved["sums"], [torch.zeros(3)] * len(saved["sums"]), "sums")
    if len({len(cells) for cells in csv.reader(content["keeper"]["curve"].splitlines())}) > 1:
        raise ValueError("the lines of its learning curve differ in length")


def check_like(value: Any, template: Any, name: str) -> None:
    """Raises ValueError unless a value has the parts, types and shapes of a template. Integers must be at least 0.

    In the template an empty dict or list stands for one with any content, and None for any value.
    """
    if isinstance(template, Mapping):
        if not isinstance(value, Mapping) or not template.keys() <= value.keys():
            raise ValueError(f"{name} lacks parts that this run has: is it of another model?")
        for key in template:
            check_like(value[key], template[key], f"{name}.{key}".removeprefix("it."))
    elif isinstance(template, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(template or value):
            raise ValueError(f"{name} is not a list of {len(template)}")
        for place, part in enumerate(template):
            check_like(value[place], part, f"{name}[{place}]")
    elif isinstance(template, Tensor):
        if not isinstance(value, Tensor) or value.shape != template.shape:
            raise ValueError(f"{name} is not a tensor of shape {tuple(template.shape)}")
        if value.is_floating_point() != template.is_floating_point():
            raise ValueError(f"{name} is of type {value.dtype}, not {template.dtype}")
    elif type(template) is float:
        if type(value) not in (int, float):
            raise ValueError(f"{name} is not a number")
    elif template is not None and (type(value) is not type(template) or (type(value) is int and value < 0)):
        raise ValueError(f"{name} is not of type {type(template).__name__}, or below 0")


def numbers(node: Any) -> Iterator[Tensor]:
    """All numbers and tensors in nested lists and dicts."""
    if isinstance(node, (Mapping, list, tuple)):
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from numbers(value)
    elif isinstance(node, (int, float, Tensor)):
        yield torch.as_tensor(node)


def check_optimizer(saved: Mapping[str, Any], own: Mapping[str, Any], steps: int) -> None:
    """`check_state` for an optimiser. Parameters that no step has used yet have no state."""
    states = saved["state"]
    if not states.keys() <= own["state"].keys() or (steps and own["state"] and not states):
        raise ValueError("optimizer_states has states of other parameters, or none")
    check_like(states, {number: own["state"][number] for number in states}, "optimizer_states")
    for group, own_group in zip(saved["param_groups"], own["param_groups"], strict=True):
        if any(group.get(name) != own_group[name] for name in own_group.keys() - BY_SCHEDULE_OR_DEVICE):
            raise ValueError("optimizer_states has other settings than the run")


def move_checkpoints(callback: ModelCheckpoint, state: dict[str, Any]) -> None:
    """Replaces the paths in a callback's saved state, as the run folder may have been moved.

    Raises ValueError for a path that the callback does not write: Lightning deletes the files that these paths name.
    """
    folder, before = Path(callback.dirpath or ""), Path(state["dirpath"])
    fixed = callback.filename if callback.filename and "{" not in callback.filename else None

    def moved(path: str) -> str:
        if not path:
            return path
        parts = (Path(path).relative_to(before) if Path(path).is_relative_to(before) else Path(Path(path).name)).parts
        safe = parts and parts[-1].endswith(".ckpt") and not any(part.startswith(".") for part in parts)
        known = fixed is None or re.fullmatch(re.escape(fixed) + r"(-v\d+)?\.ckpt", "/".join(parts))
        if not safe or not known or parts == ("last.ckpt",):  # which ResumeCheckpoint writes
            raise ValueError(f"{path!r} is not the name of a checkpoint of this run")
        return str(folder.joinpath(*parts))

    state["dirpath"] = str(folder)
    state["best_k_models"] = {moved(path): score for path, score in state["best_k_models"].items()}
    for name in ("best_model_path", "kth_best_model_path"):
        state[name] = moved(state[name])
    state["last_model_path"] = ""
