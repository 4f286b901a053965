"""Vectors of regions (a few adjacent words), learned from unlabeled text by predicting the surrounding words.

Johnson and Zhang, "Semi-supervised Convolutional Neural Networks for Text Categorization via Region Embedding", NIPS
2015, section 3.

Shape suffixes: B reviews, T positions, E size of a region's vector, D width, V ids, R words that have a vector, with
row 0 for all others; O words around a region, M pairs of a region and one of them, S sampled words.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Regions(nn.Module):
    """ReLU(the sum of the vectors of the words in a region + a bias), for the region around each word.

    slot_V: row of each id in the table, int32; 0 for words without a vector, which count as zero.
    size: E. region: number of words in a region, odd.

    >>> import torch
    >>> from imdbattn.nn.beyond import Regions
    >>> Regions(slot_V=torch.tensor([0, 0, 0, 1, 2]), size=16, region=3)(torch.tensor([[3, 4, 1]])).shape
    torch.Size([1, 3, 16])
    """

    slot_V: Tensor

    def __init__(self, slot_V: Tensor, size: int, region: int):
        super().__init__()
        self.size, self.region = size, region
        self.register_buffer("slot_V", slot_V)
        self.table_RE = nn.Parameter(torch.randn(int(slot_V.max()) + 1, size) / 10)
        self.bias_E = nn.Parameter(torch.full((size,), 0.05))  # positive, so that no entry starts at zero everywhere

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Ids (B, T), 0 for padding -> (B, T, E)."""
        slots_BT = self.slot_V[tokens_BT].long()
        x_BTE = F.embedding(slots_BT, self.table_RE, padding_idx=0) * (slots_BT > 0)[..., None]
        sum_BET = F.avg_pool1d(x_BTE.transpose(1, 2), self.region, 1, self.region // 2) * self.region
        return F.relu(sum_BET.transpose(1, 2) + self.bias_E)


class RegionVectors(nn.Module):
    """A learned linear map of the vector of the region around each word, divided by its root mean square.

    regions: frozen. With word dropout, a region consists of the nearest words that were not dropped.

    >>> import torch
    >>> from imdbattn.nn.beyond import Regions, RegionVectors
    >>> regions = Regions(slot_V=torch.tensor([0, 0, 0, 1, 2]), size=16, region=3)
    >>> RegionVectors(64, regions)(torch.tensor([[3, 4, 1]])).shape
    torch.Size([1, 3, 64])
    """

    def __init__(self, width: int, regions: Regions):
        super().__init__()
        self.regions = regions.requires_grad_(False)
        self.resize = nn.Linear(regions.size, width, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Ids (B, T), 0 for padding -> (B, T, D)."""
        return self.resize(F.normalize(self.regions(tokens_BT), dim=-1) * self.regions.size**0.5)


class NeighborWords(nn.Module):
    """Predicts the words before and after each region with a sampled softmax.

    The scores of the softmax are corrected for the sampling (Jean et al. 2015, section 3.1).

    Args:
        slot_V: see Regions.
        counts_R: number of occurrences of each word that has a vector; 0 for row 0.
        size, region: see Regions.
        reach: number of words before, and after, a region that are predicted.
        sampled: S, number of sampled words, drawn for a whole batch with probabilities proportional to count^0.75.
        subsample: t; a word with a share p of the text is predicted with probability sqrt(t / p), if that is below 1
            (Mikolov et al. 2013, section 2.3).

    >>> import torch
    >>> from imdbattn.nn.beyond import NeighborWords
    >>> counts_R = torch.tensor([0, 5, 9])
    >>> net = NeighborWords(torch.tensor([0, 0, 0, 1, 2]), counts_R, size=16, region=1, reach=2, subsample=0.5)
    >>> slots_BTO = net.around(torch.tensor([[3, 4, 1]]))
    >>> slots_BTO
    tensor([[[0, 0, 2, 0],
             [0, 1, 0, 0],
             [1, 2, 0, 0]]])
    >>> losses_M, right_M = net(torch.tensor([[3, 4, 1]]), slots_BTO, slots_BTO > 0, net.sample())
    >>> losses_M.shape
    torch.Size([4])
    """

    counts_R: Tensor
    share_R: Tensor
    sampling_R: Tensor
    log_expected_R: Tensor

    def __init__(
        self,
        slot_V: Tensor,
        counts_R: Tensor,
        size: int = 200,
        region: int = 5,
        reach: int = 5,
        sampled: int = 800,
        subsample: float = 3e-5,
    ):
        super().__init__()
        self.regions = Regions(slot_V, size, region)
        self.reach, self.sampled, self.subsample = reach, sampled, subsample
        self.output_RE = nn.Parameter(torch.randn(len(counts_R), size) / 10)
        self.register_buffer("counts_R", counts_R)
        p_R = counts_R.double() / counts_R.sum()
        share_R = torch.where(counts_R > 0, (subsample / p_R).sqrt().clamp(max=1), 0)
        q_R = p_R**0.75 / (p_R**0.75).sum()
        self.register_buffer("share_R", share_R.float(), persistent=False)
        self.register_buffer("sampling_R", q_R.float(), persistent=False)
        self.register_buffer("log_expected_R", (q_R * sampled).log().float(), persistent=False)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Rows of words drawn at random, (S,)."""
        return self.sampling_R.multinomial(self.sampled, replacement=True, generator=generator)

    def around(self, tokens_BT: Tensor) -> Tensor:
        """Rows of the words before and after the region around each word, (B, T, O); 0 where there is none."""
        half = self.regions.region // 2
        slots_BT = F.pad(self.regions.slot_V[tokens_BT].long(), [half + self.reach] * 2)
        windows = slots_BT.unfold(1, 2 * (half + self.reach) + 1, 1)
        slots_BTO = torch.cat([windows[..., : self.reach], windows[..., -self.reach :]], -1)
        return slots_BTO * (tokens_BT != 0)[..., None]

    def forward(self, tokens_BT: Tensor, slots_BTO: Tensor, chosen_BTO: Tensor, sample_S: Tensor) -> tuple[Any, Any]:
        """For each chosen word (M,): its loss, and whether no sampled word is more probable.

        slots_BTO: of `around`. chosen_BTO: bool, the words to predict, none of them with row 0. sample_S: of `sample`.
        """
        h_BTE = self.regions(tokens_BT)
        sampled_BTS = h_BTE @ self.output_RE[sample_S].T - self.log_expected_R[sample_S]
        review_M, place_M, _ = chosen_BTO.nonzero(as_tuple=True)
        word_M = slots_BTO[chosen_BTO]
        own_M = (h_BTE[review_M, place_M] * F.embedding(word_M, self.output_RE)).sum(-1) - self.log_expected_R[word_M]
        losses_M = F.softplus(sampled_BTS.logsumexp(-1)[review_M, place_M] - own_M)
        most_BT, best_BT = sampled_BTS.detach().max(-1)
        is_best_M = sample_S[best_BT[review_M, place_M]] == word_M  # a word may be among the sampled ones itself
        return losses_M, is_best_M | (own_M.detach() > most_BT[review_M, place_M])
