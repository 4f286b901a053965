"""Strings of letters and their reversals, generated from a seed.

    Z D K A  ->  A K D Z

A model that has learned this task attends to the source from its last position to its first.
"""

import random
from itertools import product
from string import ascii_uppercase
from typing import Any

import numpy as np

from imdbattn.data.splits import SPLITS, Source, Split, Texts
from imdbattn.errors import UserError

VERSION = 1  # version of the generator; increment it when a seed yields other strings
# test and validation each contain at most 1 / HELD_OUT_DIVISOR of the strings of a length
HELD_OUT_DIVISOR = 4


def reverse_source(settings: Any) -> Source:
    """Returns all three splits of the strings; settings: the settings in conf/data/reverse.yaml."""
    lengths = tuple(settings.lengths)
    shortest, longest = test_lengths = tuple(settings.test_lengths or lengths)
    options = {"seed": settings.seed, "letters": settings.letters}
    options |= {"lengths": lengths, "test_lengths": test_lengths}
    options |= {split: getattr(settings, split) for split in SPLITS}
    test_set = f"{settings.letters} letters, lengths {shortest} to {longest}, seed {settings.seed}"

    def load() -> Texts:
        splits = {}
        for name, strings in generate(**options).items():
            sources = [" ".join(string) for string in strings]
            targets = [[" ".join(reversed(string))] for string in strings]
            splits[name] = Split(sources, targets, np.arange(len(strings)))
        return Texts(splits, test_set=test_set)

    return Source("reverse", "Reversed strings (generated)", repr((VERSION, options)), load)


def generate(
    seed: int, letters: int, lengths: tuple[int, int], test_lengths: tuple[int, int], **sizes: int
) -> dict[str, list[str]]:
    """Returns the strings of each split, all different, in random order.

    All lengths within the bounds are equally frequent, except short ones with too few strings.
    The test strings are drawn first, from a separate generator, so they do not depend on the
    settings of training and validation. Raises UserError if too few different strings exist.
    """
    alphabet = ascii_uppercase[:letters]
    taken: dict[int, set[str]] = {}  # strings of each length that are in a split
    splits = {}
    for name in ("test", "validation", "train"):
        rng = random.Random(f"{name} {seed}")
        shortest, longest = test_lengths if name == "test" else lengths
        room = {}  # number of strings of each length that this split may have
        for length in range(shortest, longest + 1):
            every = letters**length
            most = every if name == "train" else every // HELD_OUT_DIVISOR
            room[length] = min(most, every - len(taken.setdefault(length, set())))
        count = left = sizes[name]
        if sum(room.values()) < count:
            raise UserError(
                f"data.{name}={count}: only {sum(room.values())} strings of {letters} letters and"
                f" lengths {shortest} to {longest} are available; use fewer, or longer ones"
            )
        strings: list[str] = []
        # Lengths have equal numbers of strings; a length with fewer adds all of them.
        for done, length in enumerate(sorted(room, key=lambda length: (room[length], length))):
            share = min(room[length], left // (len(room) - done))
            left -= share
            strings += draw(rng, alphabet, length, share, taken[length])
        rng.shuffle(strings)
        splits[name] = strings
    return {name: splits[name] for name in SPLITS}


def draw(rng: random.Random, alphabet: str, length: int, count: int, taken: set[str]) -> list[str]:
    """Draws `count` new strings of that length and adds them to `taken`."""
    # If few strings are left, a sample is drawn from a list of them.
    if len(alphabet) ** length < 4 * (len(taken) + count):
        every = map("".join, product(alphabet, repeat=length))
        strings = rng.sample([string for string in every if string not in taken], count)
        taken.update(strings)
        return strings
    strings = []
    while len(strings) < count:
        string = "".join(rng.choices(alphabet, k=length))
        if string not in taken:
            taken.add(string)
            strings.append(string)
    return strings
