"""Checks last.ckpt before a run resumes: it may be damaged, of another run, or written by someone else."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor

from imdbattn.runs.callbacks import Throughput
from imdbattn.tasks.build import check_weights

LOOPS = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
CALLBACKS = (EarlyStopping, ModelCheckpoint, Throughput)  # custom callbacks may save any values
BY_SCHEDULE_OR_DEVICE = {"lr", "initial_lr", "fused", "foreach"}  # settings of an optimizer that may differ


def check_state(
    content: Mapping[str, Any], module: L.LightningModule, optimizer: torch.optim.Optimizer, trainer: L.Trainer
) -> None:
    """Raises ValueError naming a part of a checkpoint that is missing, or that a run with these settings cannot save.

    module: with initial weights. optimizer: one like the run's own, after one step. trainer: with all callbacks.
    """
    own = optimizer.state_dict()
    groups = own["param_groups"]
    rates = [group["lr"] for group in groups]
    rank = {"random": torch.get_rng_state(), "sums": []}
    template = {
        "epoch": 0,
        "global_step": 0,
        "loops": {name: getattr(trainer, name).state_dict() for name in LOOPS},
        "state_dict": module.state_dict(),
        "optimizer_states": [{"state": {}, "param_groups": [{} for _ in groups]}],
        "lr_schedulers": [{"last_epoch": 0, "_step_count": 0, "base_lrs": rates, "_last_lr": rates}],
        "callbacks": {one.state_key: one.state_dict() for one in trainer.callbacks if type(one) in CALLBACKS},  # type: ignore[attr-defined]
        "keeper": {"ranks": [rank] * trainer.world_size, "stopped": False, "curve": ""},
    }
    check_like(content, template, "it")
    check_weights(content["state_dict"], module.state_dict())

    optimizer_state = content["optimizer_states"][0]
    states = optimizer_state["state"]  # without parameters that no step has used yet
    if not states.keys() <= own["state"].keys() or (content["global_step"] and own["state"] and not states):
        raise ValueError("optimizer_states has states of other parameters, or none")
    check_like(states, {number: own["state"][number] for number in states}, "optimizer_states")
    for saved, group in zip(optimizer_state["param_groups"], groups, strict=True):
        if any(saved.get(name) != group[name] for name in group.keys() - BY_SCHEDULE_OR_DEVICE):
            raise ValueError("optimizer_states has other settings than the run")

    for saved in content["keeper"]["ranks"]:
        torch.Generator().set_state(saved["random"])  # raises an error for an invalid state
        check_like(saved["sums"], [torch.zeros(3)] * len(saved["sums"]), "sums")
    if len({len(cells) for cells in csv.reader(content["keeper"]["curve"].splitlines())}) > 1:
        raise ValueError("the lines of its learning curve differ in length")


def check_like(value: Any, template: Any, name: str) -> None:
    """Raises ValueError unless a value has the parts, types and shapes of a template.

    Integers must be at least 0, and numbers finite where the template's are. An empty dict or list in the template
    matches one with any content, and None any value but a tensor of several numbers or NaN.
    """
    if isinstance(template, Mapping):
        if not isinstance(value, Mapping) or not template.keys() <= value.keys():
            raise ValueError(f"{name} lacks keys that this run has; the checkpoint may be of another model")
        for key in template:
            check_like(value[key], template[key], f"{name}.{key}".removeprefix("it."))
    elif isinstance(template, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(template or value):
            raise ValueError(f"{name} is not a list of {len(template)}")
        for place, part in enumerate(template):
            check_like(value[place], part, f"{name}[{place}]")
    elif isinstance(template, (Tensor, float)):
        expected = torch.as_tensor(template)
        number = torch.as_tensor(value) if type(value) in (type(template), int) else None
        if number is None or number.shape != expected.shape:
            raise ValueError(f"{name} is not a number, or a tensor of shape {tuple(expected.shape)}")
        if isinstance(template, Tensor) and number.is_floating_point() != expected.is_floating_point():
            raise ValueError(f"{name} is of type {number.dtype}, not {expected.dtype}")
        if number.isnan().any() or (expected.isfinite().all() and not number.isfinite().all()):
            raise ValueError(f"{name} is not finite")
    elif template is None:
        if isinstance(value, Tensor) and (value.numel() != 1 or value.isnan()):
            raise ValueError(f"{name} is not a number")
    elif type(value) is not type(template) or (type(value) is int and value < 0):
        raise ValueError(f"{name} is not of type {type(template).__name__}, or below 0")


def move_checkpoints(callback: ModelCheckpoint, state: dict[str, Any]) -> None:
    """Replaces the paths in a callback's saved state, because the run folder may have been moved.

    Raises ValueError for a path that the callback does not write: Lightning deletes the files that these paths name.
    """
    folder, before = Path(callback.dirpath or ""), state["dirpath"]

    def moved(path: str) -> str:
        if not path:
            return path
        parts = Path(path).relative_to(before).parts  # raises an error for a path elsewhere
        if not path.endswith(".ckpt") or parts == ("last.ckpt",) or any(part.startswith(".") for part in parts):
            raise ValueError(f"{path!r} is not the name of a checkpoint of this run")
        return str(folder.joinpath(*parts))

    state["dirpath"] = str(folder)
    state["best_k_models"] = {moved(path): score for path, score in state["best_k_models"].items()}
    for name in ("best_model_path", "kth_best_model_path"):
        state[name] = moved(state[name])
    state["last_model_path"] = ""
