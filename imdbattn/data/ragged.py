"""Reviews of different lengths as one flat tensor, and padded batches gathered from it without a loop over tokens.

Shape suffixes: N reviews of a split, B reviews of a batch, T positions, W preceding words.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Batch(NamedTuple):
    """A padded batch. `rows_B` are the indices of the reviews in their split, so that each is scored exactly once."""

    tokens_BT: Tensor  # int64 ids, then 0
    positions_BT: Tensor  # int64 position of each token in its (truncated) review
    lengths_B: Tensor  # int64 tokens in the batch, may be 0
    labels_B: Tensor  # int64
    rows_B: Tensor  # int64
    before_BTW: Tensor  # int64 ids of the words before each token in its review, nearest first; 0 if none
    reviews: int  # in this batch, over all processes
    fold_B: Tensor | None = None  # int64, the fold of each training review, for a model with phrases; None otherwise


@dataclass(frozen=True)
class Ragged:
    """Ids of all reviews in one flat tensor: review n is `ids[offsets[n]:offsets[n + 1]]`.

    All tensors are on one device, where batches are made.
    """

    ids: Tensor  # (tokens,) int32
    offsets: Tensor  # (N + 1,) int64
    labels: Tensor  # (N,) int64
    rows: np.ndarray  # (N,) row numbers in the source

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> Tensor:
        """(N,) tokens of each review, before truncation. On the CPU, where batches are planned."""
        return (self.offsets[1:] - self.offsets[:-1]).cpu()

    def joined(self, other: "Ragged") -> "Ragged":
        """These reviews followed by `other`, whose row numbers continue after the last of these."""
        rows = np.concatenate([self.rows, other.rows + 1 + self.rows.max(initial=-1)])
        offsets = torch.cat([self.offsets, other.offsets[1:] - other.offsets[0] + self.offsets[-1]])
        return Ragged(torch.cat([self.ids, other.ids]), offsets, torch.cat([self.labels, other.labels]), rows)

    def to(self, device: torch.device) -> "Ragged":
        ids, offsets, labels = (tensor.to(device) for tensor in (self.ids, self.offsets, self.labels))
        return replace(self, ids=ids, offsets=offsets, labels=labels)

    def batch(self, index_B: Tensor, *, seed: int = 0, **options: Any) -> Batch:
        """The reviews `index_B` (on the CPU), padded to the longest of them. options: see `batches`."""
        return self.batches([(seed, index_B)], **options)[0]

    def batches(
        self,
        items: Sequence[tuple[int, Tensor]],
        max_tokens: int | None = None,
        head_share: float = 1.0,
        word_dropout: float = 0.0,
        multiple: int = 1,
        before: int = 0,
        part: slice = slice(None),
        widths: Sequence[int] = (),
    ) -> list[Batch]:
        """Makes several batches with as many operations as one. Each is padded to its longest review, or to 1 position.

        Args:
            items: for each batch, the random seed of word dropout and the indices of its reviews (on the CPU). The same
                seed drops different words on different device types.
            max_tokens: a longer review keeps its first `head_share` x max_tokens tokens and as many of its last as fit.
            word_dropout: share of each review's tokens that are removed at random; the others keep their positions.
            multiple: the number of positions is rounded up to a multiple of this, but not beyond max_tokens.
            before: W, the number of words in `before_BTW`, which includes removed words.
            part: the reviews of one process; random numbers are drawn for all of them.
            widths: numbers of positions to round up to, instead of `multiple`; see `padded`.
        """
        # 1. Sizes, on the CPU, so that nothing below synchronizes with the device.
        seeds, counts = [seed for seed, _ in items], [len(index_B) for _, index_B in items]
        index_B = torch.cat([index_B for _, index_B in items])
        full_B = self.lengths[index_B]
        lengths_B, kept_B = self.kept(full_B, max_tokens), self.kept(full_B, max_tokens, word_dropout)
        # The longest length of each batch, at least 1, in all and after word dropout
        longest, sizes = ([max(c.tolist(), default=0) or 1 for c in n_B.split(counts)] for n_B in (lengths_B, kept_B))
        padded_sizes = [int(padded(size, multiple, max_tokens, widths)) for size in sizes]
        index_B, full_B, lengths_B, kept_B = move(torch.stack([index_B, full_B, lengths_B, kept_B]), self.ids.device)
        # 2. The position of each token in its truncated review.
        if word_dropout > 0:
            positions_BT = draw_positions(seeds, counts, longest, lengths_B, kept_B, max(sizes))
        else:
            positions_BT = torch.arange(max(longest), device=self.ids.device).expand(len(index_B), -1)
        positions_BT = F.pad(positions_BT, (0, max(padded_sizes) - max(sizes)))
        word_BT = torch.arange(positions_BT.shape[1], device=self.ids.device) < kept_B[:, None]
        positions_BT = positions_BT * word_BT
        # 3. Its place in `ids`. A truncated review is its head and its tail: positions from `head` are after the gap.
        head, start_B1 = round((max_tokens or 0) * head_share), self.offsets[index_B][:, None]
        place_BT = start_B1 + positions_BT + (full_B - lengths_B)[:, None] * (positions_BT >= head)
        # 4. The ids of the tokens and of the words before them.
        tokens_BT = self.ids[(place_BT * word_BT)].long() * word_BT if len(self.ids) else torch.zeros_like(place_BT)
        before_BTW = self.before(place_BT, start_B1, before) * word_BT[..., None]
        # 5. Separate batches.
        columns = (tokens_BT, positions_BT, kept_B, self.labels[index_B], index_B, before_BTW)
        made = []
        for count, width, *own in zip(counts, padded_sizes, *(column.split(counts) for column in columns), strict=True):
            own = [(column[part, :width] if column.ndim > 1 else column[part]).contiguous() for column in own]
            made.append(Batch(*own, reviews=count))  # type: ignore[misc]
        return made

    def batch_lengths(self, max_tokens: int | None = None, word_dropout: float = 0.0, **options: Any) -> np.ndarray:
        """(N,) positions that each review takes in a batch with these options."""
        kept_N = self.kept(self.lengths, max_tokens, word_dropout).numpy()
        return padded(kept_N, options.get("multiple", 1), max_tokens, options.get("widths", ()))

    def before(self, place: Tensor, start: Tensor, words: int) -> Tensor:
        """Ids of the `words` tokens before each place, nearest first, (..., words); 0 before the review's `start`."""
        ids = place.new_zeros(*place.shape, words)
        for back in range(1, words + 1 if len(self.ids) else 1):
            inside = place - back >= start
            ids[..., back - 1] = self.ids[((place - back) * inside).clamp(max=len(self.ids) - 1)].long() * inside
        return ids

    def words(self, before: int) -> tuple[Tensor, Tensor]:
        """The `before` words preceding each token of all reviews, (tokens, before), and the review of each token."""
        review = torch.arange(len(self)).repeat_interleave(self.lengths).to(self.ids.device)
        places = torch.arange(len(self.ids), device=self.ids.device)
        return self.before(places, self.offsets[review], before), review

    @staticmethod
    def kept(lengths: Tensor, max_tokens: int | None, word_dropout: float = 0.0) -> Tensor:
        """Number of tokens that reviews of these lengths keep; at least one unless a review is empty."""
        lengths = lengths if max_tokens is None else lengths.clamp(max=max_tokens)
        return (lengths * (1 - word_dropout)).round().long().clamp(min=1).minimum(lengths)


def draw_positions(
    seeds: list[int], counts: list[int], longest: list[int], lengths_B: Tensor, kept_B: Tensor, size: int
) -> Tensor:
    """Random positions that word dropout keeps, ascending (B, size); positions after a review's `kept_B` are unused.

    seeds, counts, longest: for each batch, its seed, number of reviews and longest review.
    """
    # Each review keeps its `kept` smallest random numbers; those after its end are 2 and never kept.
    device = lengths_B.device
    draw_BT = torch.full((len(lengths_B), max(longest)), 2.0, device=device)
    for seed, rows_BT, columns in zip(seeds, draw_BT.split(counts), longest, strict=True):
        rows_BT[:, :columns].uniform_(generator=torch.Generator(device).manual_seed(seed))
    draw_BT.masked_fill_(torch.arange(max(longest), device=device) >= lengths_B[:, None], 2.0)
    chosen_BT = draw_BT.topk(size, largest=False).indices
    beyond_BT = torch.arange(size, device=device) >= kept_B[:, None]
    return chosen_BT.masked_fill_(beyond_BT, max(longest)).sort().values


def padded(lengths: np.ndarray | int, multiple: int, max_tokens: int | None, widths: Sequence[int] = ()) -> np.ndarray:
    """Lengths rounded up to one of `widths`, if any; else to a multiple, but not beyond max_tokens. At least 1.

    widths: ascending; the last is at least the longest length.
    """
    if widths:
        return np.asarray(widths)[np.searchsorted(widths, lengths)]
    rounded = -(-np.maximum(lengths, 1) // multiple) * multiple
    return rounded if max_tokens is None else np.minimum(rounded, max_tokens)


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a CPU tensor to another device without synchronizing with it."""
    cuda = device.type == "cuda"
    return (tensor.pin_memory() if cuda else tensor).to(device, non_blocking=cuda)


def as_tensor(array: np.ndarray) -> Tensor:
    """A tensor over a memory-mapped array, without a copy. Torch warns that it is read-only; nothing writes to it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


def ragged(ids: list[list[int]], labels: np.ndarray | None = None) -> Ragged:
    """Ragged from Python lists of ids, for tests and for prediction; labels default to 0."""
    lengths = torch.tensor([0, *map(len, ids)])
    flat = torch.tensor([token for review in ids for token in review], dtype=torch.int32)
    labels_N = torch.as_tensor(np.zeros(len(ids)) if labels is None else labels, dtype=torch.int64)
    return Ragged(flat, lengths.cumsum(0), labels_N, np.arange(len(ids)))


def read_places(length: int, max_tokens: int | None, head_share: float) -> list[int]:
    """Indices of the tokens that remain when `Ragged.batch` truncates a review of `length` tokens."""
    batch = ragged([list(range(length))]).batch(torch.tensor([0]), max_tokens=max_tokens, head_share=head_share)
    return batch.tokens_BT[0, : batch.lengths_B[0]].tolist()
