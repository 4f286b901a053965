"""The update of large tables by optim.LazyAdamW, of the rows that a batch uses.

Shape suffix: R rows.
"""

from typing import Any

import torch


def update_rows(
    parameter: torch.Tensor, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]
) -> None:
    """Applies Adam (Kingma and Ba 2015, algorithm 1) with decoupled weight decay, on rows whose
    gradient is not zero. state: of the parameter in the optimizer. group: its parameter group.
    """
    beta1, beta2 = group["betas"]
    # On a GPU a count on the host would be frozen in a recorded step; MPS has no float64.
    on_device = parameter.device.type not in ("cpu", "mps")
    if not state:
        state["step"] = torch.zeros((), device=parameter.device if on_device else "cpu")
        state["exp_avg"] = torch.zeros_like(parameter)
        state["exp_avg_sq"] = torch.zeros_like(parameter)
    state["step"] += 1
    step = state["step"].double() if on_device else state["step"].item()
    lr = group["lr"]
    tables = state["exp_avg"], state["exp_avg_sq"], parameter
    used_R = gradient.abs().sum(-1) != 0  # this equals any(-1), several times faster

    def updated(
        g: torch.Tensor, mean: torch.Tensor, square: torch.Tensor, weight: torch.Tensor
    ) -> tuple:
        mean = mean.lerp(g, 1 - beta1)
        square = square.mul(beta2).addcmul_(g, g, value=1 - beta2)
        root = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
        change = (mean * (lr / (1 - beta1**step))).div_(root)
        return mean, square, weight.mul(1 - lr * group["weight_decay"]).sub_(change)

    if gradient.is_cpu:  # a batch uses at most a tenth of the rows
        rows = used_R.nonzero()[:, 0]
        used = [table.index_select(0, rows) for table in (gradient, *tables)]
        for table, new in zip(tables, updated(*used), strict=True):
            table.index_copy_(0, rows, new)
    else:  # reading the number of rows would synchronize
        for table, new in zip(tables, updated(gradient, *tables), strict=True):
            table.copy_(torch.where(used_R[..., None], new, table))
