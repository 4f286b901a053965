"""The base class of the LightningDataModules: passes the batches of a corpus to the Trainer.

Shape suffix: N items of a split.
"""

import math
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import torch

from imdbattn.data.corpus import Corpus
from imdbattn.data.plans import TrainPlans, eval_plans
from imdbattn.data.ragged import WHOLE_REVIEWS, BatchMaker, BatchOptions

GPU_LENGTHS = 6  # different lengths of a split's batches: 13 % padding on IMDB instead of 6 %
GPU_CHUNK = 16  # batches made together, with about as many operations as one of them takes alone


def is_on_gpu(items: Any) -> bool:
    """Returns whether the items are on a GPU, where several batches are made together."""
    return getattr(items, "is_cuda", False)


class Loader:
    """The batches that a sampler plans, `chunk_size` of them made together.

    sampler: yields the BatchPlan of each batch.
    A torch DataLoader draws a random number in each epoch, which would change the random state of
    dropout; a Loader does not.
    """

    batch_sampler = None  # Lightning reads it, and calls `set_epoch` of the sampler

    def __init__(self, maker: BatchMaker, sampler: Any, chunk_size: int):
        self.maker, self.sampler, self.chunk_size = maker, sampler, chunk_size
        self.ready: deque[Any] = deque()  # batches made together with the last one

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        plans = iter(self.sampler)
        while chunk := list(islice(plans, self.chunk_size)):
            self.ready = deque(self.maker.make(chunk))
            while self.ready:
                yield self.ready.popleft()

    def take_ready(self, count: int) -> list[Any]:
        """Returns at most `count` of the next batches, only those that are already made."""
        return [self.ready.popleft() for _ in range(min(count, len(self.ready)))]


class BatchData(L.LightningDataModule):
    """Loaders for train, validation and test of one corpus. Each Task names a subclass.

    Batches are made in the main process, because workers would cost more than they save. On a GPU,
    the ids of a whole split are stored on it, and batches are made there.
    Use `Trainer(use_distributed_sampler=False)`: each process makes its own part of every training
    batch, and its own batches for evaluation.

    Args:
        settings: the run's settings.
        corpus: the result of `read`, or other data.
    """

    def __init__(self, settings: Any, corpus: Any):
        super().__init__()
        self.settings, self.corpus = settings, corpus
        # The split that `Trainer.test` scores: Lightning's test loop scores validation, too.
        self.scored_split = "test"
        # None is GPU_LENGTHS on a GPU, and no limit on a CPU.
        self.max_padded_lengths: int | None = None
        self.options = WHOLE_REVIEWS  # options for evaluation
        self.train_options = WHOLE_REVIEWS

    @staticmethod
    def read(settings: Any) -> Corpus:
        """Returns the Corpus that the `data` settings describe. Raises UserError for data that
        cannot be read as meant.
        """
        raise NotImplementedError

    @property
    def batch_tokens(self) -> int:
        """The number of padded tokens in one training batch, over all processes together."""
        return self.settings.data.batch_tokens

    def settings_to_record(self) -> Any:
        """Returns the settings as a run records them: with absolute paths, with the values that
        `auto` and null stand for, and with their digest.
        """
        return self.settings.resolved(self.corpus.source_kind, self.batch_tokens)

    def save_texts(self, split: str, path: Path) -> None:
        """Writes the texts of a split as a Parquet file with the columns `row` and `text`."""
        raise NotImplementedError

    def ranks(self) -> tuple[int, int]:
        """Returns this process's rank and the number of processes."""
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def trained_batches(self) -> int:
        """Returns the number of batches of this epoch already trained on: 0, unless a run resumes
        within the epoch.
        """
        if not self.trainer:
            return 0
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.completed

    def items(self, split: str) -> Any:
        """Returns the items of a split, from which its batches are made."""
        return self.corpus.splits[split]

    def batch_maker(
        self, split: str, options: BatchOptions | None = None, ranks: tuple[int, int] = (0, 1)
    ) -> BatchMaker:
        """Returns the maker of a split's batches, on the training device, with few different padded
        lengths if `max_padded_lengths` limits them. options: `self.options` by default.
        """
        device = self.trainer.strategy.root_device if self.trainer else torch.device("cpu")
        items, options = self.items(split).to(device), options or self.options
        if count := self.max_padded_lengths or (GPU_LENGTHS if is_on_gpu(items) else None):
            from imdbattn.data.padded_lengths import with_few_lengths

            options = with_few_lengths(items, options, count)
        return BatchMaker(items, options, *ranks)

    def curriculum(self) -> list[BatchOptions]:
        """Returns the options of each of the first epochs that differ from `train_options`."""
        return []

    def overfits(self) -> bool:
        """Returns whether every epoch repeats the first batches, whose number Lightning limits."""
        return bool(self.trainer and self.trainer.overfit_batches)  # type: ignore[attr-defined]

    def loader(self, maker: BatchMaker, plans: Any) -> Loader:
        if self.overfits():
            plans = list(plans)
        return Loader(maker, plans, GPU_CHUNK if is_on_gpu(maker.items) else 1)

    def train_dataloader(self) -> Loader:
        """Returns the training batches of the current epoch. The number of steps and the learning
        rate do not depend on `curriculum`: all epochs have the same number of batches.
        """
        epoch = self.trainer.current_epoch if self.trainer else 0
        loader = self.train_loader(self.train_options)
        differing = [] if self.overfits() else self.curriculum()[epoch:]
        return self.train_loader(differing[0], len(loader)) if differing else loader

    def train_loader(self, options: BatchOptions, count: int | None = None) -> Loader:
        """Returns the training batches with these options; their number is `count`, if given."""
        maker = self.batch_maker("train", options, self.ranks())
        plans_class = TrainPlans
        if maker.options.padded_lengths:
            from imdbattn.data.padded_lengths import FewShapesPlans as plans_class
        lengths_N, seed = maker.batch_lengths(), self.settings.seed
        plans = plans_class(lengths_N, self.batch_tokens, seed, self.trained_batches, count)
        return self.loader(maker, plans)

    def eval_dataloader(self, split: str) -> Loader:
        """Returns every item of `split` exactly once, over all processes."""
        maker, budget = self.batch_maker(split), self.settings.data.eval_batch_tokens
        return self.loader(maker, eval_plans(maker.batch_lengths(), budget, *self.ranks()))

    def val_dataloader(self) -> Loader:
        return self.eval_dataloader("validation")

    def test_dataloader(self) -> Loader:
        return self.eval_dataloader(self.scored_split)


def default_batch_tokens(tokens: int) -> int:
    """Returns the number of padded tokens in a training batch: the largest power of two from 512 to
    8,192 that gives at least 400 batches per epoch before word dropout.

    A small training set yields batches of 512 tokens, and fewer than 400 batches.

    tokens: number of tokens in all training reviews, after truncation but before word dropout,
    which must not change the batches.
    """
    return min(8192, max(512, 2 ** int(math.log2(max(tokens, 1) / 400))))
