"""The data modules: they hand the batches of a prepared corpus to Lightning."""

from itertools import islice
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, Sampler

from imdbattn.data.pairs import PairBatches
from imdbattn.data.sampling import Batches, EvalBatches, TrainBatches, default_budget


class BatchData(L.LightningDataModule):
    """Loaders for train, validation and test of one corpus.

    Batches are gathered by index in the process itself: workers would cost more than they bring. On a GPU the ids of
    a whole split lie there, and batches are cut out there.
    Use with `Trainer(use_distributed_sampler=False)`: the samplers know the ranks.

    Args:
        corpus: what was prepared: `splits` of items.
        batch_tokens: padded tokens of one training batch, over all processes together.
        eval_batch_tokens: the same for validation and test, for each process.
        seed: of the order of the batches and of what is drawn within them.
        test_split: the split that `test_dataloader` gives.
    """

    def __init__(self, corpus: Any, batch_tokens: int, eval_batch_tokens: int, seed: int, test_split: str = "test"):
        super().__init__()
        self.corpus, self.seed, self.test_split = corpus, seed, test_split
        self.batch_tokens, self.eval_batch_tokens = batch_tokens, eval_batch_tokens

    def train_batches(self) -> Any:
        """Turns what the sampler of training yields into batches: this process's part of each."""
        raise NotImplementedError

    def eval_batches(self, split: str) -> Any:
        """The same for scoring a split, batches whole."""
        raise NotImplementedError

    def ranks(self) -> tuple[int, int]:
        """This process's rank and the number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def done(self) -> int:
        """Batches of this epoch that are trained on: none as it begins, but for one that a run was stopped in."""
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.completed if self.trainer else 0

    def items(self, split: str) -> Any:
        """The ids of a split, on the device that trains."""
        return self.corpus.splits[split].to(self.trainer.strategy.root_device if self.trainer else torch.device("cpu"))

    def loader(self, batches: Any, sampler: Sampler) -> DataLoader:
        overfit = self.trainer.overfit_batches if self.trainer else 0  # type: ignore[attr-defined]
        if overfit:  # Lightning allows nothing but a sequential sampler then: so a list of ready batches
            count = int(overfit if overfit >= 1 else overfit * len(sampler)) or 1  # type: ignore[arg-type,operator]
            batches, sampler = [batches[item] for item in islice(sampler, count)], None  # type: ignore[assignment]
        # A loader draws a number of its own at each epoch: not from those that dropout goes by.
        return DataLoader(batches, sampler=sampler, batch_size=None, generator=torch.Generator())

    def train_dataloader(self) -> DataLoader:
        batches = self.train_batches()
        return self.loader(batches, TrainBatches(batches.lengths_N(), self.batch_tokens, self.seed, done=self.done))

    def eval_dataloader(self, split: str) -> DataLoader:
        """Every item of `split` exactly once, over all processes."""
        batches = self.eval_batches(split)
        return self.loader(batches, EvalBatches(batches.lengths_N(), self.eval_batch_tokens, *self.ranks()))

    def val_dataloader(self) -> DataLoader:
        return self.eval_dataloader("validation")

    def test_dataloader(self) -> DataLoader:
        return self.eval_dataloader(self.test_split)


class ReviewData(BatchData):
    """Reviews. max_tokens, head_share, word_dropout, before: see `Ragged.batch`; words are taken out in training only.

    batch_tokens: None takes `default_budget` of the training reviews.
    pad_to: positions of a batch are rounded up to a multiple of it. For the rest see BatchData.
    """

    def __init__(
        self,
        corpus: Any,
        *,
        batch_tokens: int | None,
        max_tokens: int | None,
        head_share: float,
        word_dropout: float,
        pad_to: int,
        before: int = 0,
        **more: Any,
    ):
        if batch_tokens is None:
            train = corpus.splits.get("train")  # other data that are scored have none
            batch_tokens = default_budget(0 if train is None else int(train.kept(train.lengths, max_tokens).sum()))
        super().__init__(corpus, batch_tokens, **more)
        self.max_tokens, self.head_share, self.word_dropout = max_tokens, head_share, word_dropout
        self.pad_to, self.before = pad_to, before

    def train_batches(self) -> Batches:
        cut = (self.max_tokens, self.head_share, self.word_dropout)
        return Batches(self.items("train"), *cut, *self.ranks(), self.pad_to, self.before)

    def eval_batches(self, split: str) -> Batches:
        return Batches(self.items(split), self.max_tokens, self.head_share, multiple=self.pad_to, before=self.before)


class PairData(BatchData):
    """Pairs of source and target; tokens are those of both."""

    def train_batches(self) -> PairBatches:
        return PairBatches(self.items("train"), *self.ranks())

    def eval_batches(self, split: str) -> PairBatches:
        return PairBatches(self.items(split))
