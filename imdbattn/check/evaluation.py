"""Rules of test_accuracy: the share of test reviews that the model labels correctly.

Shape suffixes: B reviews, T positions, C classes.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from imdbattn.check.rules import Mistake, Part, Rules

RULES = Rules()
# First word, which FirstWord predicts, and label. The shares of label 1 and of class 1 differ from those of right ones.
ONE, ZERO, WRONG = (1, 1), (0, 0), (0, 1)


class FirstWord(nn.Module):
    """Predicts the id of the first word as the class; in training mode the opposite class."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor) -> Tensor:
        chosen_B = 1 - tokens_BT[:, 0] if self.training else tokens_BT[:, 0]
        return self.scale * nn.functional.one_hot(chosen_B, 2).to(torch.get_default_dtype())


def loader(*batches: list[tuple[int, int]]) -> DataLoader[Any]:
    """Batches (tokens, lengths, labels). batches: the first word and the label of each review."""
    first_N, labels_N = torch.tensor([review for batch in batches for review in batch]).unbind(1)
    reviews = TensorDataset(first_N[:, None].repeat(1, 2), torch.full_like(labels_N, 2), labels_N)
    places = torch.arange(len(labels_N)).split([len(batch) for batch in batches])
    return DataLoader(reviews, batch_sampler=[batch.tolist() for batch in places])


def accuracy(part: Part, train: DataLoader[Any], test: DataLoader[Any]) -> float:
    model = FirstWord()
    with torch.enable_grad():
        return float(part.make(model.train(), train, test))


@RULES.add("number")
def number(part: Part) -> None:
    """The result is a number from 0 to 1."""
    result = accuracy(part, loader([ONE, ZERO]), loader([ONE, ZERO]))
    if not 0 <= result <= 1:
        example = f"With all reviews right or all wrong the result is {result:.4g}."
        fix = "Return correct / total, a number and not a percentage."
        raise Mistake("wrong-accuracy", "The result is not a share from 0 to 1.", example, fix)


@RULES.add("test-reviews")
def test_reviews(part: Part) -> None:
    """The accuracy is that of the test reviews, in evaluation mode."""
    train, test = loader([ONE, ZERO, ONE, ONE], [ONE, ZERO, ONE, WRONG]), loader([ONE, ZERO, ONE, WRONG], [ONE, WRONG])
    result = accuracy(part, train, test)
    example = f"7 of 8 training and 4 of 6 test reviews are right: the result is {result:.4g}, right is 0.6667."
    if abs(result - 4 / 6) < 1e-4:
        return
    mistakes = {
        7 / 8: ("accuracy-on-training", "The accuracy is that of the training reviews.", "Loop over test_loader."),
        1 / 8: ("accuracy-on-training", "The accuracy is that of the training reviews.", "Loop over test_loader."),
        11 / 14: ("accuracy-on-both", "The accuracy is that of training and test reviews.", "Loop over test_loader."),
        0.625: ("mean-of-batches", "Batches count the same, however many reviews they have.", "correct / total."),
        2 / 6: ("not-in-evaluation-mode", "The model is in training mode, with dropout.", "Call model.eval() first."),
        0.75: ("one-batch-only", "Only the first batch counts.", "Add up the batches before dividing."),
        3 / 6: ("one-batch-only", "One of the batches does not count.", "Loop over all of test_loader."),
        1 / 6: ("one-batch-only", "Only the last batch counts.", "Add up the batches before dividing."),
    }
    for value, (name, sentence, fix) in mistakes.items():
        if abs(result - value) < 1e-4:
            raise Mistake(name, sentence, example, fix)
    raise Mistake("wrong-accuracy", "The result is not the share of correct test reviews.", example, "correct / total.")
