"""A task from outside the package: tags each letter of a string that is in the second half of the
alphabet.

Shape suffixes: B strings of a batch, N strings of a split, T letters, D width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imdbattn.data.corpus import Corpus
from imdbattn.data.ragged import Batch, BatchMaker, Ragged
from imdbattn.io.files import write_table
from imdbattn.nn import ResidualLayer, SinusoidalPositions, WordPositions, sequence_mask
from imdbattn.settings.objects import instantiate
from imdbattn.settings.schema import Count, ModelSettings, SettingsGroup, TrainingSettings
from imdbattn.tasks.data_module import BatchData
from imdbattn.tasks.learner import Learner, SplitScores
from imdbattn.tasks.prediction import Prediction
from imdbattn.tasks.predictor import Predictor
from imdbattn.tasks.task import Task
from imdbattn.tasks.weights import SavedNet, load_weights

LETTERS = "abcdefgh"
SIZES = {"train": 0, "validation": 1, "test": 2}  # split -> seed of its strings


class Strings(SettingsGroup):
    """The settings of conf/data/strings.yaml."""

    source: Literal["strings"]
    train: Count
    validation: Count
    test: Count
    batch_tokens: Count
    eval_batch_tokens: Count


class TaggingSettings(TrainingSettings):
    """The settings of a tagging run."""

    choose_by: Literal["accuracy", "loss"]
    data: Strings
    model: ModelSettings


class Tagger(nn.Module):
    """Logits (B, T) of the letters' tags."""

    def __init__(self, width: int):
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.positions = SinusoidalPositions(width)
        self.layer = ResidualLayer(width)
        self.head = nn.Linear(width, 1)

    def forward(self, batch: Batch) -> Tensor:
        words = WordPositions.of(sequence_mask(batch.lengths_B, batch.tokens_BT.shape[1]))
        x_BTD = self.positions(self.letters(batch.tokens_BT), words)
        return self.head(self.layer(x_BTD, words))[..., 0]


def tags(tokens_BT: Tensor) -> Tensor:
    """(B, T) bool: whether a letter is in the second half of the alphabet."""
    return tokens_BT >= len(LETTERS) // 2


def strings(count: int, seed: int) -> Ragged:
    draw = np.random.default_rng(seed)
    lengths_N = draw.integers(2, 9, count)
    ids = torch.from_numpy(draw.integers(0, len(LETTERS), int(lengths_N.sum()))).int()
    offsets = torch.from_numpy(np.concatenate([[0], lengths_N.cumsum()]))
    return Ragged(ids, offsets, torch.zeros(count, dtype=torch.int64), np.arange(count))


def text_of(ids: Tensor) -> str:
    return "".join(LETTERS[place] for place in ids.tolist())


class StringData(BatchData):
    """Random strings."""

    @staticmethod
    def read(settings: Any) -> Corpus:
        splits = {name: strings(getattr(settings.data, name), seed) for name, seed in SIZES.items()}
        fingerprints = {name: f"strings-{len(split)}" for name, split in splits.items()}
        return Corpus(
            splits=splits,
            items_name="tagged strings",
            source_kind="strings",
            source_key="strings",
            test_set="random strings",
            fingerprints=fingerprints,
            facts={},
        )

    def save_texts(self, split: str, path: Any) -> None:
        data = self.corpus.splits[split]
        parts = data.ids.split(data.lengths.tolist())
        write_table(path, {"row": data.rows, "text": [text_of(part) for part in parts]})


@dataclass(frozen=True)
class TagScores(SplitScores):
    """Whether all tags of a string are right, and the sums of losses in nats."""

    lengths_N: Tensor
    right_N: Tensor
    losses_N: Tensor

    @cached_property
    def metrics(self) -> dict[str, float]:
        letters = self.lengths_N.sum()
        loss = self.losses_N.double().sum() / letters
        return {"accuracy": self.right_N.double().mean().item(), "loss": loss.item()}

    def columns(self) -> dict[str, Any]:
        probability_N = (-self.losses_N.double()).exp().numpy()
        return {
            "label": ["" for _ in self.items_N],
            "right": self.right_N.bool().numpy(),
            "probability": probability_N,
            "label_probability": probability_N,
            "length": self.lengths_N.numpy(),
        }


class TaggingModule(Learner):
    """Trains and scores a Tagger."""

    @classmethod
    def new(cls, settings: Any, corpus: Any, initial: Any = None) -> Self:
        return cls(tagger(settings.model), settings, {})

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B,) the sum of losses of each string, and whether all of its tags are right."""
        logits_BT = self.net(batch)
        tags_BT = tags(batch.tokens_BT)
        words_BT = sequence_mask(batch.lengths_B, batch.tokens_BT.shape[1])
        losses_BT = F.binary_cross_entropy_with_logits(logits_BT, tags_BT.float(), reduction="none")
        right_B = (((logits_BT > 0) == tags_BT) | ~words_BT).all(1)
        return (losses_BT * words_BT).sum(1), right_B

    def training_loss(self, batch: Batch) -> Tensor:
        losses_B, right_B = self.losses(batch)
        self.add_to_epoch(losses_B, right_B, len(right_B))
        return losses_B.sum() * (self.trainer.world_size / batch.global_count)

    def outputs_of(self, batch: Batch) -> tuple[Tensor, ...]:
        losses_B, right_B = self.losses(batch)
        return batch.items_B, batch.lengths_B, right_B.long(), losses_B

    def make_scores(self, outputs: tuple[Tensor, ...]) -> TagScores:
        return TagScores(*outputs)


def tagger(model: ModelSettings) -> nn.Module:
    net: nn.Module = instantiate(model.net, "model.net", nn.Module)
    return net


class TaggingPredictor(Predictor):
    """Tags new strings, such as 0 1 0."""

    @classmethod
    def load(cls, settings: Any, trained: SavedNet) -> Self:
        net = tagger(settings.model)
        load_weights(net, trained.weights)
        return cls(settings, net, trained.metadata)

    def corpus(self, data: Any, keep_splits: bool = False) -> Corpus:
        return StringData.read(self.settings)

    def explain(self, text: str) -> Prediction:
        raise NotImplementedError("a tagger explains nothing")

    @torch.no_grad()
    def predict(self, texts: Sequence[str], options: Any, first: int = 0) -> Iterator[Prediction]:
        for text in texts:
            ids = torch.tensor([LETTERS.index(letter) for letter in text])
            offsets = torch.tensor([0, len(ids)])
            split = Ragged(ids.int(), offsets, torch.zeros(1, dtype=torch.int64), np.arange(1))
            logits_T = self.net(BatchMaker(split).of_items(np.arange(1)))[0]
            output = " ".join("1" if logit > 0 else "0" for logit in logits_T.tolist())
            confidence = logits_T.abs().sigmoid().prod().item()
            model = self.settings.model.name
            yield Prediction(text=text, output=output, probability=confidence, model=model)


class Tagging(Task):
    """The record that `task=tagging` names."""

    name = "tagging"
    settings_class = TaggingSettings
    data = StringData
    module = TaggingModule
    predictor = TaggingPredictor
