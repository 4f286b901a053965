"""A small data set with four classes, made of the packaged reviews: which word about the film was
removed.

    python -m benchmarks.short_reviews short_reviews.csv
    python -m imdbattn.train data.path=short_reviews.csv
    python -m benchmarks.baselines data.source=path data.path=short_reviews.csv \
        --only tfidf --folder runs/short

Each text is the first 40 words of a review with one of the four words, without that word, which is
the label.
"""

import csv
import random
import re
import sys

from imdbattn.data.sources.imdb import packaged_source

CLASSES = {
    "comedy": "comedy|comedies|comedic",
    "horror": "horror",
    "series": "series",
    "war": "wars?",
}
PATTERNS = {
    label: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for label, words in CLASSES.items()
}


def short_reviews(most: int = 1000, length: int = 40) -> list[tuple[str, str]]:
    """Returns (text, label), shuffled; at most `most` of each class, `length` words each."""
    texts: dict[str, list[str]] = {label: [] for label in CLASSES}
    for text in packaged_source().load().splits[""].texts:
        labels = [label for label, pattern in PATTERNS.items() if pattern.search(text)]
        if len(labels) == 1:
            texts[labels[0]].append(" ".join(PATTERNS[labels[0]].sub("", text).split()[:length]))
    draw = random.Random(0)
    rows = []
    for label, of_label in texts.items():
        for text in draw.sample(of_label, min(most, len(of_label))):
            rows.append((text, label))
    draw.shuffle(rows)
    return rows


if __name__ == "__main__":
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *short_reviews()])
