"""The data module: hands the batches of a prepared corpus to Lightning."""

from itertools import islice

import lightning as L
import torch
from torch.utils.data import DataLoader, Sampler

from imdbattn.data.batching import Batches, EvalBatches, TrainBatches
from imdbattn.data.prepare import Corpus
from imdbattn.data.ragged import Ragged


class ReviewData(L.LightningDataModule):
    """Loaders for train, validation and test of one corpus.

    Batches are gathered by index in the process itself: workers would cost more than they bring. On a GPU the ids of
    a whole split lie there, and batches are cut out there.
    Use with `Trainer(use_distributed_sampler=False)`: the samplers know the ranks.

    Args:
        corpus: what `prepare` returned.
        batch_tokens: padded tokens of one training batch, over all processes together.
        eval_batch_tokens: the same for validation and test, for each process.
        max_tokens, head_share, word_dropout: see `Ragged.batch`; words are taken out in training only.
        pad_to: positions of a batch are rounded up to a multiple of it.
        seed: of the order of the batches and of the words taken out.
        test_split: the split that `test_dataloader` gives.
    """

    def __init__(
        self,
        corpus: Corpus,
        batch_tokens: int,
        eval_batch_tokens: int,
        max_tokens: int | None,
        head_share: float,
        word_dropout: float,
        pad_to: int,
        seed: int,
        test_split: str = "test",
    ):
        super().__init__()
        self.corpus, self.seed, self.test_split = corpus, seed, test_split
        self.batch_tokens, self.eval_batch_tokens = batch_tokens, eval_batch_tokens
        self.max_tokens, self.head_share, self.word_dropout = max_tokens, head_share, word_dropout
        self.pad_to = pad_to

    def ranks(self) -> tuple[int, int]:
        """This process's rank and the number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def done(self) -> int:
        """Batches of this epoch that are trained on: none as it begins, but for one that a run was stopped in."""
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.completed if self.trainer else 0

    def reviews(self, split: str) -> Ragged:
        """The ids of a split, on the device that trains."""
        return self.corpus.splits[split].to(self.trainer.strategy.root_device if self.trainer else torch.device("cpu"))

    def loader(self, batches: Batches, sampler: Sampler) -> DataLoader:
        overfit = self.trainer.overfit_batches if self.trainer else 0  # type: ignore[attr-defined]
        if overfit:  # Lightning allows nothing but a sequential sampler then: so a list of ready batches
            count = int(overfit if overfit >= 1 else overfit * len(sampler)) or 1  # type: ignore[arg-type,operator]
            batches, sampler = [batches[item] for item in islice(sampler, count)], None  # type: ignore[assignment]
        # A loader draws a number of its own at each epoch: not from those that dropout goes by.
        return DataLoader(batches, sampler=sampler, batch_size=None, generator=torch.Generator())

    def train_dataloader(self) -> DataLoader:
        rank, ranks = self.ranks()
        cut = (self.max_tokens, self.head_share, self.word_dropout)
        batches = Batches(self.reviews("train"), *cut, rank, ranks, self.pad_to)
        sampler = TrainBatches(batches.lengths_N(), self.batch_tokens, self.seed, done=self.done)
        return self.loader(batches, sampler)

    def eval_dataloader(self, split: str) -> DataLoader:
        """Every review of `split` exactly once, over all processes."""
        batches = Batches(self.reviews(split), self.max_tokens, self.head_share, multiple=self.pad_to)
        sampler = EvalBatches(batches.lengths_N(), self.eval_batch_tokens, *self.ranks())
        return self.loader(batches, sampler)

    def val_dataloader(self) -> DataLoader:
        return self.eval_dataloader("validation")

    def test_dataloader(self) -> DataLoader:
        return self.eval_dataloader(self.test_split)
