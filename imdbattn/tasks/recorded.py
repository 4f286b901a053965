"""Training steps that are recorded once for each shape of a batch, and replayed.

A step of a small network launches hundreds of kernels, and on a GPU launching them takes ten times
as long as running them. A CUDA graph launches all of them with one call. It repeats the recorded
kernels on the same memory: whatever Python computes during a step is frozen into it. So batches
and learning rates are copied into tensors that the recording reads, and each recording is compared
with an eager step before it is used.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor

from imdbattn.data.ragged import with_tensors
from imdbattn.errors import one_line
from imdbattn.settings.trust import custom_classes
from imdbattn.tasks.learner import BFLOAT16, Learner, Step

log = logging.getLogger(__name__)

MAX_SHAPES = 64  # limit on recordings, because each has static tensors
# The largest difference between a recorded and an eager step, relative to the eager one. The
# kernels are the same; a frozen number makes a difference of about 1.
ROUNDING = 0.01
# Lightning calls these within a step; a replay does not.
HOOKS = (
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


class CudaGraphs:
    """Records CUDA graphs, which share their memory: they are never replayed at the same time."""

    def __init__(self, device: torch.device):
        self.device, self.stream = device, torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Steps are warmed up, recorded and checked in this context."""
        # All eager steps are made on the stream of the recordings, because the gradient of a
        # weight stays tied to the stream that first computed it.
        self.stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            torch.cuda.current_stream().wait_stream(self.stream)

    @contextmanager
    def refusing_reads(self) -> Iterator[None]:
        """In this context, reading a value from the device raises an exception."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mode does not detect all reads; recording does
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def record(self, work: Callable[[], "StepResult"]) -> tuple[Callable[[], object], "StepResult"]:
        """Records `work`. Returns a function that replays it, and what `work` returned: each replay
        fills its tensors again.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                result = work()
        except Exception:
            # Without this, the generator would refuse to draw outside of the failed recording.
            generator = torch.cuda.default_generators[self.device.index or 0]
            generator.graphsafe_set_state(torch.Generator(self.device).graphsafe_get_state())
            raise
        return graph.replay, result


class StepResult(NamedTuple):
    """What a step computes."""

    loss: Tensor  # detached
    sums_3: Tensor | None  # what `Learner.add_to_epoch` appends; None if it is not called
    norm: Tensor | None  # norm of the gradient; None if it is not clipped


@dataclass(frozen=True)
class Recording:
    batch: Any  # static tensors, which `replay` reads
    replay: Callable[[], object]
    result: StepResult  # static tensors, which `replay` fills


class StepRecorder:
    """Makes the training steps of a run with one optimizer on one device.

    Each shape of a batch is recorded when it first occurs. The very first step is eager: it creates
    the optimizer's state. If a recording fails, or does not compute what an eager step computes,
    all further steps are eager, which is logged.

    module: the Learner. one_by_one: whether each call of Lightning's loop makes only one step.
    """

    can_record = True  # False makes all steps eagerly, with the same bits

    def __init__(self, module: Any, graphs: CudaGraphs, one_by_one: bool):
        self.module, self.graphs, self.one_by_one = module, graphs, one_by_one
        self.trainer: L.Trainer = module.trainer
        self.optimizer: torch.optim.Optimizer = self.trainer.optimizers[0]
        for parameter, state in self.optimizer.state.items():
            if "step" in state:  # a loaded count is on the CPU, where a recording would freeze it
                state["step"] = state["step"].to(parameter.device)
        groups = self.optimizer.param_groups
        self.lrs = [torch.zeros((), device=module.device) for _ in groups]
        self.recordings: dict[tuple[object, ...], Recording] = {}
        self.is_warm = False
        self.recorded_with = self.constants()

    # --- several steps in one call of Lightning's loop --------------------------------------------

    def train(self, batch: Any) -> dict[str, Any]:
        """Trains on a batch and on the following batches that are already made, up to the next step
        after which Lightning or a callback must act. Returns the last loss, and the steps as
        `recorded_steps`.
        """
        if (constants := self.constants()) != self.recorded_with:
            self.recordings.clear()
            self.recorded_with = constants
        steps = [self.step(batch)]
        loader: Any = self.trainer.train_dataloader
        if not self.one_by_one and hasattr(loader, "take_ready"):
            for following in loader.take_ready(steps_to_next_stop(self.trainer) - 1):
                count_step(self.trainer)
                steps.append(self.step(following))
        return {"loss": steps[-1].loss, "recorded_steps": steps}

    def step(self, batch: Any) -> Step:
        """Makes one step, and adds its sums to the sums of the epoch."""
        number, epoch = self.trainer.global_step + 1, self.trainer.current_epoch
        lr = self.optimizer.param_groups[0]["lr"]
        result = self.make_step(batch)
        if result.sums_3 is not None:
            self.module.epoch_sums.append(result.sums_3)
        if result.norm is not None:
            self.module.gradient_norms.append(result.norm)
        return Step(batch, result.loss, number, epoch, lr)

    # --- one step ---------------------------------------------------------------------------------

    def make_step(self, batch: Any) -> StepResult:
        """Makes one step, eagerly or by a replay."""
        if not (self.can_record and self.is_warm):
            self.is_warm = True
            return self.eager_step(batch)
        if not is_flat(batch):
            return self.give_up(batch, "a batch is not a flat tuple of tensors and numbers")
        key = shape_of(batch)
        if key not in self.recordings:
            if len(self.recordings) == MAX_SHAPES:
                return self.give_up(batch, f"there are more than {MAX_SHAPES} shapes of batches")
            return self.record(batch, key)
        recording = self.recordings[key]
        copy_tensors(batch, recording.batch)
        self.set_rates()
        recording.replay()
        return with_tensors(recording.result, Tensor.clone)

    def eager_step(self, batch: Any) -> StepResult:
        with self.graphs.aside(), self.device_numbers():
            return self.whole_step(batch)

    def whole_step(self, batch: Any) -> StepResult:
        """Makes one step: gradients, clipping and update. Does not change the sums of the epoch."""
        module, trainer = self.module, self.trainer
        sums, norms = module.epoch_sums, module.gradient_norms
        added, clipped = len(sums), len(norms)
        self.optimizer.zero_grad()
        bfloat16, device = trainer.precision == BFLOAT16, module.device.type
        # Without this, weights would be cast once and frozen.
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16, cache_enabled=False):
            loss = module.training_loss(batch)
        loss.backward()
        module.configure_gradient_clipping(
            self.optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        )
        self.optimizer.step()
        sums_3 = sums.pop() if len(sums) > added else None
        norm = norms.pop() if len(norms) > clipped else None
        return StepResult(loss.detach(), sums_3, norm)

    def record(self, batch: Any, key: tuple[object, ...]) -> StepResult:
        """Records a shape and makes the step of its first batch, by a replay."""
        restore = self.snapshot()
        try:
            with self.graphs.aside():
                recording = self.checked_recording(batch, restore)
        except Exception as error:  # the step can be made without a recording
            restore()
            return self.give_up(batch, one_line(error))
        self.recordings[key] = recording
        return with_tensors(recording.result, Tensor.clone)

    def checked_recording(self, batch: Any, restore: Callable[[], None]) -> Recording:
        """Makes a step eagerly, records it, and replays it from the state before the eager one.

        restore: restores that state. Raises ValueError if the replay differs from the eager step.
        """
        static, before = with_tensors(batch, Tensor.clone), self.weights()
        with self.graphs.refusing_reads(), self.device_numbers():
            expected = self.whole_step(static)
        stepped = self.weights()
        # It is recorded with other weights, counts and rates than it is replayed with, so that the
        # comparison detects any of them that the recording has frozen.
        with self.device_numbers(factor=2.0, more=1e-3):
            replay, result = self.graphs.record(lambda: self.whole_step(static))
        restore()
        self.set_rates()
        replay()
        self.check_equal(before, stepped, expected, result)
        return Recording(static, replay, result)

    def give_up(self, batch: Any, reason: str) -> StepResult:
        """Makes this step and all later ones without a recording."""
        log.warning("Training steps are not recorded from here on: %s", reason)
        self.recordings.clear()
        self.can_record = False
        return self.eager_step(batch)

    def check_equal(
        self,
        before: list[Tensor],
        stepped: list[Tensor],
        expected: StepResult,
        result: StepResult,
    ) -> None:
        """Raises ValueError if the replayed step differs from the eager one beyond rounding.

        before, stepped: weights of each group of parameters before and after the eager step.
        expected, result: of the eager step, and of the replay.
        """
        numbers = [("loss", expected.loss, result.loss)]
        if expected.norm is not None and result.norm is not None:
            numbers.append(("norm of the gradient", expected.norm, result.norm))
        for name, of_eager, of_replay in numbers:
            eager_value, value = of_eager.item(), of_replay.item()
            if not is_close(value, eager_value, scale=abs(eager_value)):
                raise ValueError(
                    f"a recorded step has a {name} of {value:g}, an eager one of {eager_value:g}"
                )
        for start, end, replayed in zip(before, stepped, self.weights(), strict=True):
            moved, error = (end - start).norm().item(), (replayed - end).norm().item()
            if not is_close(error, 0.0, scale=moved):
                raise ValueError(
                    f"weights that an eager step moves by {moved:g} differ by {error:g}"
                )

    # --- what a recording reads -------------------------------------------------------------------

    @contextmanager
    def device_numbers(self, factor: float = 1.0, more: float = 0.0) -> Iterator[None]:
        """Makes the optimizer read its counts of steps, and its learning rates times `factor` plus
        `more`, from the device.
        """
        groups = self.optimizer.param_groups
        before = [{"lr": group["lr"], "capturable": group["capturable"]} for group in groups]
        for group, lr in zip(groups, self.lrs, strict=True):
            lr.fill_(group["lr"] * factor + more)
            group |= {"lr": lr, "capturable": True}
        try:
            yield
        finally:
            for group, values in zip(groups, before, strict=True):
                group |= values

    def set_rates(self) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.lrs, strict=True):
            lr.fill_(group["lr"])

    def constants(self) -> tuple[object, ...]:
        """Returns values that recordings freeze, although a callback could change them."""
        trainer = self.trainer
        clipping = (trainer.gradient_clip_val, trainer.gradient_clip_algorithm)
        groups, weights = [], []
        for group in self.optimizer.param_groups:
            varying = ("params", "lr", "initial_lr")
            groups.append(repr([(key, group[key]) for key in group if key not in varying]))
            weights += [(weight.data_ptr(), weight.requires_grad) for weight in group["params"]]
        modes = [part.training for part in self.module.net.modules()]
        return (*clipping, *groups, *weights, *modes)

    # --- the state before a step ------------------------------------------------------------------

    def weights(self) -> list[Tensor]:
        """Returns a copy of the weights of each group of parameters, as one vector."""
        copies = []
        for group in self.optimizer.param_groups:
            copies.append(torch.cat([weight.detach().flatten() for weight in group["params"]]))
        return copies

    def snapshot(self) -> Callable[[], None]:
        """Returns a function that restores weights, buffers, the optimizer's state, the states of
        torch's random generators, and the sums of the epoch as they are now.
        """
        device = self.module.device
        # state_dict includes buffers that training changes
        tensors = [*self.module.state_dict().values()]
        for values in self.optimizer.state.values():
            tensors += filter(is_tensor, values.values())
        copies = [tensor.clone() for tensor in tensors]
        random = torch.get_rng_state()
        random_of_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        sums, norms = [*self.module.epoch_sums], [*self.module.gradient_norms]

        def restore() -> None:
            with torch.no_grad():
                for tensor, copy in zip(tensors, copies, strict=True):
                    tensor.copy_(copy)
            torch.set_rng_state(random)
            if random_of_gpu is not None:
                torch.cuda.set_rng_state(random_of_gpu, device)
            # A step that failed after its loss has added to these.
            self.module.epoch_sums[:], self.module.gradient_norms[:] = sums, norms

        return restore


def is_close(value: float, expected: float, scale: float) -> bool:
    """Returns whether two numbers differ by rounding, in computations with numbers
    as large as `scale`.

    If an eager step is not finite, a replay need not be.
    """
    return not math.isfinite(scale) or abs(value - expected) <= ROUNDING * max(scale, 1e-9)


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def is_flat(batch: object) -> bool:
    plain = (Tensor, int, float, str, type(None))
    return isinstance(batch, tuple) and all(isinstance(part, plain) for part in batch)


def shape_of(batch: Any) -> tuple[object, ...]:
    """Returns the shapes of a batch's tensors, and its other values, which a recording freezes."""
    return tuple((part.shape, part.dtype) if is_tensor(part) else part for part in batch)


def copy_tensors(batch: Any, static: Any) -> None:
    pairs = [(to, part) for to, part in zip(static, batch, strict=True) if is_tensor(part)]
    torch._foreach_copy_([to for to, _ in pairs], [part for _, part in pairs])


# --- Lightning's loop -----------------------------------------------------------------------------


def steps_to_next_stop(trainer: L.Trainer) -> int:
    """Returns the number of steps, including the current batch's, up to the next step after which
    Lightning validates or stops, or callbacks read losses.
    """
    loop, done = trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.batch_idx
    every = trainer.log_every_n_steps  # type: ignore[attr-defined]
    stops = [trainer.num_training_batches - done, every - done % every]
    if trainer.max_steps >= 0:
        stops.append(trainer.max_steps - trainer.global_step)
    between: Any = trainer.val_check_batch
    if between is not None and between != float("inf"):
        at = loop.total_batch_idx if trainer.check_val_every_n_epoch is None else done
        stops.append(between - at % between)
    return max(1, int(min(stops)))


def count_step(trainer: L.Trainer) -> None:
    """Lets Lightning's loop count the step that was made, and begin the next one, as it does
    itself between two batches.
    """
    loop = trainer.fit_loop.epoch_loop
    batches, steps = loop.batch_progress, loop.automatic_optimization.optim_progress.optimizer.step
    steps.increment_completed()
    batches.increment_processed()
    loop.update_lr_schedulers("step", update_plateau_schedulers=False)
    batches.increment_completed()
    loop._batches_that_stepped += 1  # the step that loggers write
    batches.increment_ready()
    batches.increment_started()
    steps.increment_ready()


# --- whether steps can be recorded ----------------------------------------------------------------


class RecordSteps(L.Callback):
    """Uses a StepRecorder for the training steps, or logs why they cannot be recorded. With
    record_steps=false Lightning makes the steps.

    Steps with custom parts are recorded with record_steps=true only: a recording would freeze what
    their Python code computes in each step, for example from the number of the step.
    """

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        setting = module.settings.record_steps
        if setting is False:
            return
        reason, custom = obstacle(trainer, module), custom_classes(module.settings)
        if reason is None and custom and setting == "auto":
            reason = f"{custom[0]} may compute numbers in Python; record_steps=true records them"
        if reason is None:
            # The user's callbacks and methods must see each step.
            hooks = ("on_train_batch_start", "on_train_batch_end")
            overridden = any(overrides(module, hook, Learner) for hook in hooks)
            one_by_one = overridden or bool(module.settings.trainer.dump().get("callbacks"))
            module.recorder = StepRecorder(module, CudaGraphs(module.device), one_by_one)
        elif trainer.is_global_zero:
            log.warning("Training steps are not recorded: %s", reason)

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        module.recorder = None


def obstacle(trainer: L.Trainer, module: Any) -> str | None:
    """Returns why the steps of a run that starts cannot be recorded, or None."""
    if trainer.accumulate_grad_batches > 1:
        return "trainer.accumulate_grad_batches is above 1"
    if module.settings.trainer.dump().get("detect_anomaly"):
        return "trainer.detect_anomaly is set"
    if trainer.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        return "there are several processes, or the strategy is not for a single device"
    plain = type(trainer.precision_plugin) in (Precision, MixedPrecision)
    if not plain or trainer.precision not in ("32-true", BFLOAT16):
        return f"precision {trainer.precision} is not supported"
    optimizers = trainer.optimizers
    if len(optimizers) != 1 or any("capturable" not in g for g in optimizers[0].param_groups):
        names = ", ".join(type(optimizer).__name__ for optimizer in optimizers)
        return f"{names} reads numbers on the host: it has no option `capturable`"
    for name in ("training_step", "backward", "optimizer_step", "optimizer_zero_grad", *HOOKS):
        if overrides(module, name, Learner):
            return f"{type(module).__name__} has its own {name}: define training_loss instead"
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        for name in HOOKS:
            if overrides(callback, name, L.Callback):
                return f"{type(callback).__name__} has a hook within the step, {name}"
    return None


def overrides(module: object, name: str, base: type) -> bool:
    """Returns whether an object overrides the method of its base class with that name."""
    method = getattr(module, name)
    return getattr(method, "__func__", method) is not getattr(base, name)
