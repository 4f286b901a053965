"""A small data set with four classes, made of the packaged reviews: which word about the film was taken out.

    python benchmarks/short_reviews.py short_reviews.csv
    python -m imdbattn.train data.path=short_reviews.csv
    python benchmarks/baselines.py data.source=path data.path=short_reviews.csv --only tfidf --folder runs/short

Of each review that has only one of the four words, the first 40 words without it; its label is that word.
"""

import argparse
import csv
import random
import re
from pathlib import Path

from imdbattn.data.reviews import packaged_source

CLASSES = {"comedy": "comedy|comedies|comedic", "horror": "horror", "series": "series", "war": "wars?"}
PATTERNS = {label: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for label, words in CLASSES.items()}


def short_reviews(most: int = 1000, length: int = 40) -> list[tuple[str, str]]:
    """(text, label), shuffled; at most `most` of a class, `length` words each."""
    found: dict[str, list[str]] = {label: [] for label in CLASSES}
    for text in packaged_source().load().splits[""].texts:
        labels = [label for label, pattern in PATTERNS.items() if pattern.search(text)]
        if len(labels) == 1:
            found[labels[0]].append(" ".join(PATTERNS[labels[0]].sub("", text).split()[:length]))
    draw = random.Random(0)
    rows = [(text, label) for label, texts in found.items() for text in draw.sample(texts, min(most, len(texts)))]
    draw.shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the CSV file to write")
    with open(parser.parse_args().file, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([("text", "label"), *short_reviews()])


if __name__ == "__main__":
    main()
