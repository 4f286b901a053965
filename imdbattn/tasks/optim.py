"""An optimizer for models with large tables of vectors, of which a batch uses few rows."""

from collections.abc import Callable
from typing import Any

import torch


class LazyAdamW(torch.optim.AdamW):
    """AdamW, but in groups with `lazy: True` only rows with a gradient, and their averages, are
    updated.

    Equivalent to torch.optim.SparseAdam, but for dense gradients, which can be clipped and averaged
    over processes. Adam continues to update a row for about ten steps after its word occurred, ten
    times as far in total, which overfits rare words.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises ValueError for a lazy group with an option that is not implemented."""
        if param_group.get("lazy"):
            for name in ("amsgrad", "maximize", "differentiable"):
                if param_group.get(name, self.defaults[name]):
                    raise ValueError(
                        f"LazyAdamW does not support {name}: omit it, or use torch.optim.AdamW"
                    )
            # loading a state would move `step` to the GPU, and reading it synchronizes
            param_group["fused"] = False
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. closure: computes the loss and the gradients, and returns the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        lazy = [
            (group, p, p.grad)
            for group in self.param_groups
            if group.get("lazy")
            for p in group["params"]
        ]
        for _, parameter, _ in lazy:
            parameter.grad = None  # AdamW skips parameters without a gradient
        super().step()
        for group, parameter, gradient in lazy:
            parameter.grad = gradient
            if gradient is not None:
                self.update_rows(group, parameter, gradient)
        return loss

    def update_rows(
        self, group: dict[str, Any], parameter: torch.Tensor, gradient: torch.Tensor
    ) -> None:
        """Adam (Kingma and Ba 2015, algorithm 1) with decoupled weight decay, on rows whose
        gradient is not zero.
        """
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = (
                torch.zeros_like(parameter),
                torch.zeros_like(parameter),
            )
        state["step"] += 1
        step, lr = state["step"].item(), float(group["lr"])
        tables = state["exp_avg"], state["exp_avg_sq"], parameter
        used_R = gradient.any(-1)

        def updated(
            g: torch.Tensor, mean: torch.Tensor, square: torch.Tensor, weight: torch.Tensor
        ) -> tuple:
            mean = mean.lerp(g, 1 - beta1)
            square = square.mul(beta2).addcmul_(g, g, value=1 - beta2)
            root = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
            weight = weight.mul(1 - lr * group["weight_decay"])
            return mean, square, weight.addcdiv_(mean, root, value=-lr / (1 - beta1**step))

        if gradient.is_cpu:  # at most a tenth of the rows
            rows = used_R.nonzero(as_tuple=True)
            for table, new in zip(
                tables, updated(gradient[rows], *(table[rows] for table in tables)), strict=True
            ):
                table[rows] = new
        else:  # reading the number of rows would synchronize
            for table, new in zip(tables, updated(gradient, *tables), strict=True):
                table.copy_(torch.where(used_R[..., None], new, table))
