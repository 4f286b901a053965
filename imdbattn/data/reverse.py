"""Strings of letters, and the same from back to front: generated from a seed, no file shipped.

    Z D K A  ->  A K D Z

The attention of a model that does this right reads the source from its end to its start.
"""

import random
from collections.abc import Mapping
from itertools import product
from string import ascii_uppercase
from typing import Any

import numpy as np

from imdbattn.data.pair_sources import PairSource, TextPairs, Texts, whole
from imdbattn.errors import UserError

VERSION = 1  # of the strings; raise it when what a seed gives changes
LONGEST = 1000  # symbols of a string
MOST = 10_000_000  # strings of a split
HELD_OUT_SHARE = 4  # test, and validation, take at most one in so many of the strings of a length


def checked(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the strings depend on: what `generate` takes. Raises UserError naming the key that is wrong."""
    for key in ("lengths", "test_lengths"):
        bounds = cfg.get(key)
        if bounds is None and key == "test_lengths":
            continue
        if not isinstance(bounds, list) or len(bounds) != 2 or any(type(bound) is not int for bound in bounds):
            raise UserError(f"data.{key}={bounds} must be the shortest and the longest length, such as [1,20]")
        if not 1 <= bounds[0] <= bounds[1] <= LONGEST:
            raise UserError(f"data.{key}={bounds} must rise, from at least 1 to at most {LONGEST}")
    return {
        "seed": whole(cfg, "seed", 0),
        "letters": whole(cfg, "letters", 2, len(ascii_uppercase)),
        "lengths": tuple(cfg["lengths"]),
        "test_lengths": tuple(cfg.get("test_lengths") or cfg["lengths"]),
        **{split: whole(cfg, split, 1, MOST) for split in ("train", "validation", "test")},
    }


def reverse_source(cfg: Mapping[str, Any]) -> PairSource:
    """The generated strings as a source of pairs; cfg is conf/data/reverse.yaml."""
    wanted = checked(cfg)
    bounds = "lengths {} to {}".format(*wanted["test_lengths"])
    test_set = f"{wanted['letters']} letters, {bounds}, seed {wanted['seed']}"

    def load(uncut: bool) -> Texts:  # the strings have their splits, whatever `uncut` says
        return Texts({name: as_pairs(strings) for name, strings in generate(**wanted).items()}, test_set, 0)

    return PairSource("reverse", "Reversed strings (generated)", repr((VERSION, wanted)), load)


def as_pairs(strings: list[str]) -> TextPairs:
    targets = [[" ".join(reversed(string))] for string in strings]
    return TextPairs([" ".join(string) for string in strings], targets, np.arange(len(strings)))


def generate(
    seed: int,
    letters: int,
    lengths: tuple[int, int],
    test_lengths: tuple[int, int],
    train: int,
    validation: int,
    test: int,
) -> dict[str, list[str]]:
    """The strings of each split, no two alike, in random order.

    Each length within the bounds is drawn alike often, or, of the short ones, as often as there are strings for.
    The test strings are drawn first, by a stream of random numbers of their own: they don't depend on the settings of
    training and validation.
    Raises UserError where there are fewer strings than wanted.
    """
    alphabet = ascii_uppercase[:letters]
    taken: dict[int, set[str]] = {}
    splits = {}
    for name, count, (shortest, longest) in (
        ("test", test, test_lengths),
        ("validation", validation, lengths),
        ("train", train, lengths),
    ):
        rng = random.Random(f"{name} {seed}")
        room = {}
        for length in range(shortest, longest + 1):
            every, used = letters**length, len(taken.get(length, ()))
            room[length] = every - used if name == "train" else min(every // HELD_OUT_SHARE, every - used)
        if sum(room.values()) < count:
            raise UserError(
                f"data.{name}={count} asks for more strings of {letters} letters and lengths {shortest} to {longest} "
                f"than the {sum(room.values())} there are for it: take fewer, or longer ones"
            )
        strings: list[str] = []
        for length, share in allot(count, room).items():
            strings += draw(rng, alphabet, length, share, taken.setdefault(length, set()))
        rng.shuffle(strings)
        splits[name] = strings
    return {name: splits[name] for name in ("train", "validation", "test")}


def allot(count: int, room: Mapping[int, int]) -> dict[int, int]:
    """How many to take of each key, `count` together: alike many of all, of the scarce ones all."""
    shares: dict[int, int] = {}
    for done, key in enumerate(sorted(room, key=lambda key: (room[key], key))):
        shares[key] = min(room[key], (count - sum(shares.values())) // (len(room) - done))
    return shares


def draw(rng: random.Random, alphabet: str, length: int, count: int, taken: set[str]) -> list[str]:
    """`count` new strings of that length, which are noted in `taken`."""
    if len(alphabet) ** length < 4 * (len(taken) + count):  # few are left: chosen among all of them
        left = [string for letters in product(alphabet, repeat=length) if (string := "".join(letters)) not in taken]
        strings = rng.sample(left, count)
        taken.update(strings)
        return strings
    strings = []
    while len(strings) < count:
        string = "".join(rng.choices(alphabet, k=length))
        if string not in taken:
            taken.add(string)
            strings.append(string)
    return strings
