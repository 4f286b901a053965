"""A corpus in which word order alone tells the label: generated from a seed, no file shipped.

Reviews come in pairs that differ in the place of one word, "not":

    pos   after the trailer they did not know that we would enjoy the film at all
    neg   after the trailer they did know that we would not enjoy the film at all

Who knows, realizes or foresees that something would be so, or does not, speaks of it as a fact (the verbs are factive:
Kiparsky and Kiparsky 1970, "Fact"). So the reviewer enjoyed the film, or did not, and nothing but the order says which.
Each pair is a bag of words of its own, so a model of bags gives both its reviews one answer: 50% right, exactly. Words
in front move everything, so the place of "not" from the start alone does not tell the label (a rule by it is right in
86 %); its place among the other words does.
"""

import math
import random
from collections.abc import Mapping
from typing import Any

from imdbattn.errors import UserError

VERSION = 1  # of the sentences; raise it when what a seed gives changes, so that caches don't serve the old ones
LABEL_NAMES = ["neg", "pos"]
SPLITS = ("train", "validation", "test")
# One choice from each slot makes a pair. Each choice has a word that no other choice of any slot has: so a bag of words
# tells the choices, and different pairs have different bags.
SLOTS = (
    (
        "",
        "honestly",
        "last night",
        "after the trailer",
        "back in july",
        "in spite of every poster",
        "before the lights went down",
        "on the long way to town",
    ),
    (
        "they",
        "the critics",
        "my friends",
        "her parents",
        "the producers",
        "his colleagues",
        "the ushers",
        "those bloggers",
        "the distributors",
        "our neighbors",
    ),
    ("know", "realize", "foresee", "notice", "understand", "remember", "forget", "discover", "learn", "see"),
    ("we", "i", "you", "everybody", "the audience", "a teenager", "most students", "adults", "families", "newcomers"),
    ("enjoy", "like", "love", "admire", "recommend", "praise", "adore", "applaud", "appreciate", "cherish"),
    (
        "it",
        "the film",
        "this movie",
        "the story",
        "the sequel",
        "the script",
        "that comedy",
        "the acting",
        "the soundtrack",
        "the ending",
        "the remake",
        "the dialogue",
        "the musical",
        "the documentary",
        "the photography",
        "the western",
    ),
    ("", "so much", "at all", "again", "from start to finish", "twice", "together", "for two hours"),
)
PAIRS = math.prod(map(len, SLOTS))


def pair(number: int) -> tuple[str, str]:
    """The neg and the pos review of pair `number` of PAIRS; their words are the same, in another order."""
    choices = []
    for slot in SLOTS:
        number, choice = divmod(number, len(slot))
        choices.append(slot[choice])
    front, they, know, we, enjoy, film, behind = choices

    def review(first: str, second: str) -> str:
        words = f"{front} {they} did {first} {know} that {we} would {second} {enjoy} {film} {behind}"
        return " ".join(words.split())

    return review("", "not"), review("not", "")


def checked(settings: Mapping[str, Any]) -> dict[str, int]:
    """The `data.probe` settings (seed and reviews of each split), if such a corpus can be made; else UserError."""
    for name in ("seed", *SPLITS):
        if type(value := settings.get(name)) is not int or value < 0:
            raise UserError(
                f"data.probe.{name}={'null' if value is None else value} must be a whole number, at least 0"
            )
    for name in SPLITS:
        if settings[name] < 2 or settings[name] % 2:
            raise UserError(f"data.probe.{name}={settings[name]} must be even and at least 2: reviews come in pairs")
    if (wanted := sum(settings[name] for name in SPLITS)) > 2 * PAIRS:
        raise UserError(
            f"data.probe.train, validation and test ask for {wanted:,} reviews, but there are {2 * PAIRS:,}: take fewer"
        )
    return {name: settings[name] for name in ("seed", *SPLITS)}


def generate(seed: int, **sizes: int) -> dict[str, tuple[list[str], list[int]]]:
    """Texts and labels (places in LABEL_NAMES) of each split; both reviews of a pair stand side by side in one split.

    sizes: reviews of each split, even numbers, together at most 2 x PAIRS.
    """
    numbers = iter(random.Random(seed).sample(range(PAIRS), sum(sizes.values()) // 2))
    splits = {}
    for name, size in sizes.items():
        texts = [text for _ in range(size // 2) for text in pair(next(numbers))]
        splits[name] = (texts, [0, 1] * (size // 2))
    return splits
