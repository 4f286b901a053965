"""The numbered symbols, letters or words, of one side of the pairs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from imdbattn.nn.encoder_decoder import BOS, EOS, PAD

UNK_SYMBOL = 3
# The symbols of PAD, BOS, EOS and UNK_SYMBOL
MARKERS = ["<pad>", "<bos>", "<eos>", "<unk>"]


@dataclass(frozen=True)
class Vocabulary:
    """Symbol number i is `symbols[i]`; the first four are MARKERS."""

    symbols: list[str]

    @cached_property
    def ids(self) -> dict[str, int]:
        """The number of each symbol except the markers, so that a word spelled like a
        marker is unknown.
        """
        return {
            symbol: number for number, symbol in enumerate(self.symbols) if number >= len(MARKERS)
        }

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, symbols: Sequence[str]) -> list[int]:
        """Returns the numbers of the symbols, UNK_SYMBOL for unknown ones; without BOS and EOS."""
        return [self.ids.get(symbol, UNK_SYMBOL) for symbol in symbols]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Returns the symbols before the first EOS, without PAD and BOS."""
        return [self.symbols[n] for n in takewhile(lambda n: n != EOS, ids) if n not in (PAD, BOS)]

    @classmethod
    def count(cls, sequences: Iterable[Sequence[str]], min_frequency: int = 1) -> "Vocabulary":
        """Returns the symbols that occur at least `min_frequency` times, sorted by frequency."""
        counts = Counter(symbol for sequence in sequences for symbol in sequence)
        known = [
            symbol for symbol, n in counts.items() if n >= min_frequency and symbol not in MARKERS
        ]
        return cls([*MARKERS, *sorted(known, key=lambda symbol: (-counts[symbol], symbol))])
