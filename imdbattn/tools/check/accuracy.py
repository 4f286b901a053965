"""The reference of test_accuracy: a model whose logits belong to the first word.

Shape suffixes: B, N reviews, T positions, C classes.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from imdbattn.tools.check.formulas import Binding, Call, Names
from imdbattn.tools.check.kinds import PositionsKind
from imdbattn.tools.check.part import Part, call_student


class FirstWord(nn.Module):
    """The logits belong to the first word. In training mode, two words get the other class; wrong
    lengths give 0.
    """

    LOGITS = torch.tensor([[1.0, -1], [-1, 1], [-1, -2], [-2, -1], [2, 1]])  # the logits of each id

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    @classmethod
    def logits(cls, first_B: Tensor, training: bool) -> Tensor:
        flipped_B1 = (training & (first_B % 3 == 0))[:, None]
        return torch.where(flipped_B1, cls.LOGITS[first_B].flip(1), cls.LOGITS[first_B])

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        is_right_B1 = ((tokens_BT[:, 1:] != 0).sum(1) + 1 == lengths_B)[:, None]
        logits_BC = self.logits(tokens_BT[:, 0], self.training).to(torch.get_default_dtype())
        return self.scale * torch.where(
            is_right_B1, logits_BC, torch.tensor([1.0, 0.0]).to(logits_BC)
        )


# The first word and the label of each review, in batches of 5. Wrong formulas give other numbers
# than the accuracy.
TRAIN = [(2, 1), (4, 1), (1, 1), (1, 1), (3, 1), (3, 1), (3, 0), (3, 0), (1, 1), (1, 1)]
TEST = [(3, 0), (3, 1), (1, 0), (3, 0), (1, 1), (2, 0)]
TEST += [(1, 1), (1, 1), (2, 0), (3, 0), (4, 0), (3, 0)]


def share(
    reviews: list[tuple[int, int]], training: bool = False, predict: Call = lambda y: y.argmax(1)
) -> Tensor:
    """Returns the share of correct reviews."""
    first_N, labels_N = torch.tensor(reviews).unbind(1)
    return (predict(FirstWord.logits(first_N, training)) == labels_N).double().mean(0, keepdim=True)


def loader_of(reviews: list[tuple[int, int]]) -> DataLoader[Any]:
    first_N, labels_N = torch.tensor(reviews).unbind(1)
    lengths_N = torch.arange(len(reviews)) % 3 + 1
    words_NT = torch.where(torch.arange(2) < lengths_N[:, None] - 1, 7, 0)
    tokens_NT = torch.cat([first_N[:, None], words_NT], 1)
    return DataLoader(TensorDataset(tokens_NT, lengths_N, labels_N), 5)


class AccuracyKind(PositionsKind):
    """A function of a model and two loaders."""

    def examples(self, part: Part) -> Names:
        arguments = FirstWord().train(), loader_of(TRAIN), loader_of(TEST)
        return {"3 test batches, of 5, 5 and 2 reviews": arguments}

    def bindings(self, part: Part, net: Any, results: list[Tensor]) -> list[Binding]:
        return [Binding(self.names(share=share, train=TRAIN, test=TEST))]

    def result(self, part: Part, net: Any, arguments: Any) -> Tensor:
        return torch.tensor([call_student(float, part.call(net, *arguments))])
