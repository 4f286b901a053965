"""A score for attention with equal weights (Wiegreffe & Pinter 2019, "Attention is not not Explanation", section 3.2).

Shape suffixes: Q queries, K keys, d width; `...` stands for any leading dimensions, such as (B, H).
"""

from torch import Tensor

from imdbattn.nn.scores import Dot


class Uniform(Dot):
    """score(q, k) = 0: every key has the same weight, before and after training.

    Query and key stay in the autograd graph with zero gradients, because DDP requires gradients for all parameters.
    """

    def compare(self, query: Tensor, projected: Tensor) -> Tensor:
        """(..., Q, d) and (..., K, d) -> zeros (..., Q, K)."""
        return 0 * (query.sum(-1)[..., None] + projected.sum(-1)[..., None, :])
