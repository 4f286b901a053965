"""The batches of several seeds, stacked: at each step they have the same shape."""

from collections.abc import Iterator, Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from imdbattn.data.ragged import Batch
from imdbattn.data.sampling import Batches, TrainBatches
from imdbattn.tasks.loaders import BatchData


class SeedSampler(Sampler[tuple[Any, ...]]):
    """The items of the samplers of all seeds, step by step."""

    def __init__(self, samplers: Sequence[TrainBatches]):
        self.samplers = samplers

    def set_epoch(self, epoch: int) -> None:
        for sampler in self.samplers:
            sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.samplers[0])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.samplers, strict=True)


class StackedBatches(Dataset[Batch]):
    """A batch for each seed as one, with a first dimension for the seeds."""

    def __init__(self, batches: Batches):
        self.batches = batches

    def __getitem__(self, items: Sequence[Any]) -> Batch:
        columns = zip(*self.batches.several(items), strict=True)
        return Batch(*(torch.stack(c) if isinstance(c[0], Tensor) else c[0] for c in columns))  # type: ignore[arg-type]


class SeedData(L.LightningDataModule):
    """The batches of `data` for several seeds, which must have few padded lengths; validation is the same for all."""

    def __init__(self, data: BatchData, seeds: Sequence[int]):
        super().__init__()
        self.data, self.seeds = data, seeds

    def setup(self, stage: str) -> None:
        self.data.trainer = self.trainer

    def train_dataloader(self) -> DataLoader:
        batches = self.data.train_batches()
        samplers = [self.data.train_sampler(batches, seed) for seed in self.seeds]
        return self.data.loader(StackedBatches(batches), SeedSampler(samplers))

    def val_dataloader(self) -> DataLoader:
        return self.data.val_dataloader()
