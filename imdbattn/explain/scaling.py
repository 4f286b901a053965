"""A figure of why attention divides scores by sqrt(d), measured on random queries and keys.

Shape suffixes: D width, S draws, K keys, W widths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from imdbattn.nn.scores import Dot, ScaledDot
from imdbattn.pages import new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = 64
WIDTHS = [2**power for power in range(2, 11)]  # 4 to 1024
QUARTILES = (0.25, 0.5, 0.75)
DERIVATION = (
    "$q\\cdot k=\\sum_{h=1}^{d}q_hk_h$ adds $d$ independent terms of mean 0 and variance "
    "$E[q_h^2]\\,E[k_h^2]=1$, so $\\mathrm{Var}(q\\cdot k)=d$.\n"
    "$\\mathrm{Var}(q\\cdot k/\\sqrt{d})=d/d=1$ at any width. Unscaled, $p$ tends to one-hot, "
    "$\\partial p/\\partial s=\\mathrm{diag}(p)-pp^\\top$ to 0, and queries and keys stop learning.\n"
    "Measured with $q,k\\sim N(0,1)$; except for the variance, lines are medians over queries, bands quartiles."
)


@dataclass(frozen=True)
class Measured:
    """Statistics by width of scores s of q, k ~ N(0, 1) and of p = softmax(s), with quartiles over queries.

    variance_W: variance of s. entropy_3W: entropy of p in nats. gradient_3W: Frobenius norm of dp/ds = diag(p) - p p^T.
    """

    variance_W: np.ndarray
    entropy_3W: np.ndarray
    gradient_3W: np.ndarray


@torch.no_grad()
def measure(score: Any, widths: Sequence[int], keys: int = KEYS, draws: int = 256, seed: int = 1) -> Measured:
    """Scores of `draws` random queries with `keys` random keys each, at each width. score: Dot or ScaledDot."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for width in widths:
        q_S1D, k_SKD = (torch.randn(draws, size, width, generator=generator) for size in (1, keys))
        scores_SK = score(width, width)(q_S1D, k_SKD)[:, 0].double()
        p_SK = scores_SK.softmax(-1)
        jacobian_SKK = p_SK.diag_embed() - p_SK[:, :, None] * p_SK[:, None]
        entropy_S, gradient_S = torch.special.entr(p_SK).sum(-1), torch.linalg.matrix_norm(jacobian_SKK)
        quartiles = (np.quantile(values_S, QUARTILES) for values_S in (entropy_S, gradient_S))
        rows.append((scores_SK.var().item(), *quartiles))
    return Measured(*(np.array(column).T for column in zip(*rows, strict=True)))


def scaling_figure() -> Figure:
    """Variance, entropy and gradient against the width, scaled and unscaled, above the derivation."""
    figure = new_figure(12, 4.6)
    variance, entropy, gradient = figure.subplots(1, 3)
    for score, label, color, marker in (
        (Dot, "$q\\cdot k$", "tab:blue", "o"),
        (ScaledDot, "$q\\cdot k/\\sqrt{d}$", "tab:orange", "s"),
    ):
        measured = measure(score, WIDTHS)
        variance.plot(WIDTHS, measured.variance_W, marker=marker, color=color, label=label)
        for axes, (low_W, median_W, high_W) in ((entropy, measured.entropy_3W), (gradient, measured.gradient_3W)):
            axes.plot(WIDTHS, median_W, marker=marker, color=color)
            axes.fill_between(WIDTHS, low_W, high_W, color=color, alpha=0.2, lw=0)
    variance.set(yscale="log", ylabel="variance", title="variance of the scores $s$")
    entropy.axhline(math.log(KEYS), color="gray", ls=":", label=f"log {KEYS}, equal weights")
    entropy.set(ylabel="entropy (nats)", title=f"entropy of $p$ = softmax($s$), {KEYS} keys")
    gradient.set(yscale="log", ylabel="Frobenius norm", title="gradient $\\partial p/\\partial s$")
    for axes in (variance, entropy, gradient):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("width d of query and key")
        style(axes)
    variance.legend(frameon=False)
    entropy.legend(frameon=False)
    figure.supxlabel(DERIVATION, fontsize=10)
    return figure
