"""Makes several batches at once, for devices on which starting an operation takes longer than the operation."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import Dataset, Sampler

from imdbattn.data.sampling import Batches


class Chunks(Sampler[tuple[int, list[Any]]]):
    """The items of a sampler, each as its number in a chunk of `count` items, and the chunk."""

    def __init__(self, sampler: Any, count: int):
        self.sampler, self.count = sampler, count

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[int, list[Any]]]:
        items = iter(self.sampler)
        while chunk := list(islice(items, self.count)):
            yield from ((number, chunk) for number in range(len(chunk)))


class BatchesAhead(Dataset[Any]):
    """The batches of the items of `Chunks`, read in order: the first item of a chunk makes those of all."""

    def __init__(self, batches: Batches):
        self.batches = batches
        self.made: Sequence[Any] = ()

    def __getitem__(self, item: tuple[int, list[Any]]) -> Any:
        number, chunk = item
        if number == 0:
            self.made = self.batches.several(chunk)
        return self.made[number]
