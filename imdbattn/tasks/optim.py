"""Optimizers: Muon for the matrices of layers, and AdamW that updates only the rows of large tables
that a batch uses.

Learning rates are numbers or, in a recorded step, tensors on the device (tasks/recorded); on a GPU
no step reads a value from the device.

Shape suffixes: N matrices, R rows, C columns.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch


class LazyAdamW(torch.optim.AdamW):
    """AdamW; groups with `lazy: True` update only rows with a gradient, and their averages.

    It is like torch.optim.SparseAdam, but with decoupled weight decay and dense gradients, which
    can be clipped and averaged over processes. With AdamW, momentum moves a row for about ten more
    steps after its word occurred, ten times as far in total, which overfits rare words.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError for a lazy group with an option that is not implemented."""
        if param_group.get("lazy"):
            for name in ("amsgrad", "maximize", "differentiable"):
                if param_group.get(name, self.defaults[name]):
                    raise ValueError(
                        f"LazyAdamW does not support {name}: omit it, or use torch.optim.AdamW"
                    )
            param_group["fused"] = False
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one step. closure: computes the loss and the gradients, and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        updates = [(self.own_update(group), group) for group in self.param_groups]
        own = [(update, group) for update, group in updates if update is not None]
        parameters = [parameter for _, group in own for parameter in group["params"]]
        gradients = [(parameter, parameter.grad) for parameter in parameters]
        for parameter, _ in gradients:
            parameter.grad = None  # AdamW skips parameters without a gradient
        super().step()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for update, group in own:
            update(group)
        return loss

    def own_update(self, group: dict[str, Any]) -> Callable[[dict[str, Any]], None] | None:
        """Returns the method that updates a group; None if torch's AdamW does."""
        return self.update_tables if group.get("lazy") else None

    def update_tables(self, group: dict[str, Any]) -> None:
        from imdbattn.tasks.lazy_rows import update_rows  # most runs have no such group

        for parameter in group["params"]:
            if parameter.grad is not None:
                update_rows(parameter, parameter.grad, self.state[parameter], group)


class Muon(LazyAdamW):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) for matrices, in groups
    with `matrices: True`; LazyAdamW for all other parameters.

    The update of a matrix is its momentum with all singular values near 1, so that no direction
    of a layer's input is learned faster than another. As in Jordan et al. 2024, it is scaled by
    sqrt(rows / columns) where a matrix has more rows than columns: a step changes the output of a
    layer by the same amount whatever its width, and at equal widths the factor is 1. The updates
    equal those of torch.optim.Muon (torch 2.9 and newer) except for its rounding to bfloat16.

    lr: learning rate of all other parameters. matrix_lr: learning rate of matrices. momentum:
    share of the average of earlier gradients that a step keeps. weight_decay: decoupled.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        matrix_lr: float = 0.02,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        fused: bool | None = None,
    ):
        if not matrix_lr >= 0:
            raise ValueError(f"matrix_lr={matrix_lr} must be at least 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must be from 0 to below 1")
        self.matrix_lr, self.momentum = matrix_lr, momentum
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if param_group.get("matrices"):
            param_group = {"lr": self.matrix_lr, "momentum": self.momentum} | param_group
        super().add_param_group(param_group)

    def own_update(self, group: dict[str, Any]) -> Callable[[dict[str, Any]], None] | None:
        return self.update_matrices if group.get("matrices") else super().own_update(group)

    def update_matrices(self, group: dict[str, Any]) -> None:
        """Updates the matrices of a group, all of one shape in one product.

        torch's functions for lists of tensors are private (tried: torch 2.13, 2.15). Its own
        optimizers call them too; on a GPU they save a kernel for each matrix.
        """
        by_shape: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape[parameter.shape].append(parameter)
        for (rows, columns), parameters in by_shape.items():
            directions = [self.direction(p, p.grad, group["momentum"]) for p in parameters]
            updates = orthogonalized(torch.stack(directions))
            scale = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            if isinstance(scale, torch.Tensor):
                torch._foreach_sub_(parameters, (updates * scale).unbind())
            else:
                torch._foreach_add_(parameters, updates.unbind(), alpha=-scale)

    def direction(self, parameter: torch.Tensor, gradient: Any, momentum: float) -> torch.Tensor:
        """Returns the average of the gradients of a matrix, with Nesterov's look-ahead."""
        state = self.state[parameter]
        if not state:
            # AdamW reads `step` of every parameter when it loads a state
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
        average = state["exp_avg"].lerp_(gradient, 1 - momentum)
        return torch.lerp(gradient, average, momentum)


def orthogonalized(matrices_NRC: torch.Tensor) -> torch.Tensor:
    """Returns N matrices with the same singular vectors and singular values of about 0.7 to 1.2.

    Newton-Schulz iterations with the polynomial of Jordan et al. 2024, which reaches this range
    within five steps; float32, because bfloat16 is slower on most CPUs.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x_NRC = matrices_NRC.float()
    x_NRC = x_NRC / x_NRC.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    is_tall = x_NRC.shape[1] > x_NRC.shape[2]
    if is_tall:  # products of the shorter side are smaller
        x_NRC = x_NRC.transpose(1, 2)
    for _ in range(5):
        gram_NRR = x_NRC @ x_NRC.transpose(1, 2)
        polynomial_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=b, alpha=c)
        x_NRC = torch.baddbmm(x_NRC, polynomial_NRR, x_NRC, beta=a)
    if is_tall:
        x_NRC = x_NRC.transpose(1, 2)
    return x_NRC.to(matrices_NRC.dtype)
