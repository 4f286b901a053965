"""A corpus, generated from a seed, in which word order alone determines the label.

Reviews come in pairs that differ in the position of one word, "not":

    pos   after the trailer they did not know that we would enjoy the film at all
    neg   after the trailer they did know that we would not enjoy the film at all

"Know that" presupposes its clause, negated or not (Kiparsky and Kiparsky 1970, "Fact"): the second
reviewer did not enjoy the film. Both reviews of a pair are the same bag of words, so the accuracy
of a bag-of-words model is exactly 50%. The number of words before them varies: a rule that uses
only the position of "not" has an accuracy of 86%.
"""

import math
import random

import numpy as np

from imdbattn.data.splits import SPLITS, Source, Split, Texts
from imdbattn.settings.schema import ProbeSettings

# Version of the sentences: increment it when a seed yields other sentences than the cached ones.
VERSION = 1
LABEL_NAMES = ["neg", "pos"]
# One choice from each slot makes a pair. Each choice contains a word that occurs in no other
# choice, so a bag of words determines the choices, and different pairs have different bags.
SLOTS = [
    choices.split(", ")
    for choices in (
        (
            ", honestly, last night, after the trailer, back in july, in spite of every poster, "
            "before the lights went down, on the long way to town"
        ),
        (
            "they, the critics, my friends, her parents, the producers, his colleagues, the ushers,"
            " those bloggers, the distributors, our neighbors"
        ),
        "know, realize, foresee, notice, understand, remember, forget, discover, learn, see",
        (
            "we, i, you, everybody, the audience, a teenager, most students, adults, families,"
            " newcomers"
        ),
        "enjoy, like, love, admire, recommend, praise, adore, applaud, appreciate, cherish",
        (
            "it, the film, this movie, the story, the sequel, the script, that comedy, the acting, "
            "the soundtrack, the ending, the remake, the dialogue, the musical, the documentary, "
            "the photography, the western"
        ),
        ", so much, at all, again, from start to finish, twice, together, for two hours",
    )
]
PAIRS = math.prod(map(len, SLOTS))


def order_probe_source(probe: ProbeSettings) -> Source:
    """Returns all three splits of the corpus; probe: the `data.probe` settings."""
    options = {name: getattr(probe, name) for name in ("seed", *SPLITS)}

    def load() -> Texts:
        return Texts(generate(**options), LABEL_NAMES)

    return Source("order_probe", "Order probe (generated)", repr((VERSION, options)), load)


def generate(seed: int, **sizes: int) -> dict[str, Split]:
    """Returns the reviews of each split; both reviews of a pair are adjacent in one split.

    sizes: number of reviews of each split, even, in total at most 2 x PAIRS.
    """
    numbers = iter(random.Random(seed).sample(range(PAIRS), sum(sizes.values()) // 2))
    splits = {}
    for name, size in sizes.items():
        texts = [text for _ in range(size // 2) for text in pair(next(numbers))]
        splits[name] = Split(texts, np.arange(size) % 2, np.arange(size))
    return splits


def pair(number: int) -> tuple[str, str]:
    """Returns the neg and the pos review of pair `number`, with the same words in another order."""
    choices = []
    for slot in SLOTS:
        number, choice = divmod(number, len(slot))
        choices.append(slot[choice])
    front, they, know, we, enjoy, film, behind = choices
    neg = f"{front} {they} did {know} that {we} would not {enjoy} {film} {behind}"
    pos = f"{front} {they} did not {know} that {we} would {enjoy} {film} {behind}"
    return neg.strip(), pos.strip()
