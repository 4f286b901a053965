"""A small world: vectors of a hundred words, and reviews made of them."""

import csv
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from imdbattn.data.word_vectors import WordVectors, load_vectors
from imdbattn.settings.schema import VectorSettings

GOOD, BAD = ("good", "great", "lovely", "fine"), ("bad", "awful", "dull", "poor")
FILLER = (
    *("the", "film", "was", "a", "story", "of", "and", "it", "n't"),
    *("do", "actor", "scene", "plot", "i", "you", "."),
)

# Overrides with which an encoder-decoder learns in a second
SMALL = ["task=seq2seq", "logger=csv", "trainer=cpu", "trainer.enable_progress_bar=false"]
SMALL += ["threads=1", "patience=null", "pictures=false"]
SMALL += ["model.net.hidden=16", "model.net.width=8", "optim.lr=0.01"]
REVERSE = [*SMALL, "data.train=200", "data.validation=40", "data.test=60", "trainer.max_epochs=4"]
REVERSE += ["data.lengths=[1,4]", "data.letters=6", "data.batch_tokens=128"]
TRANSLATION = [*SMALL, "data=translation", "data.limit=300", "trainer.max_epochs=4"]


def load(cache: Path, **settings: object) -> WordVectors:
    """The vectors that these settings `data.vectors` name, cached in a folder."""
    every = {"source": "auto", "dim": None, "path": None} | settings
    return load_vectors(VectorSettings(**every), str(cache))


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Writes these texts into files of a folder, and returns the folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def write_world(folder: Path) -> None:
    """Writes vectors.txt (10 dimensions), reviews.csv (240 reviews, neg and pos), unlabeled.txt and
    labeled.csv (60).

    labeled.csv has the reviews of unlabeled.txt, and as probabilities the shares of good and bad
    words.
    """
    rng = np.random.default_rng(0)
    words = [*FILLER, *GOOD, *BAD, *(f"word{i}" for i in range(76))]
    lines = [f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=10))}\n" for word in words]
    (folder / "vectors.txt").write_text("".join(lines))
    draw = random.Random(0)
    with (folder / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for number in range(240):
            label = number % 2
            text = draw.choices(FILLER, k=draw.randint(2, 30))
            text += draw.choices((BAD, GOOD)[label], k=3)
            draw.shuffle(text)
            rare = f"word{draw.randint(0, 75)} r{number}"
            writer.writerow((f"{' '.join(text)} {rare}", ("neg", "pos")[label]))
    reviews = [draw.choices(FILLER, k=9) + draw.choices((*BAD, *GOOD), k=3) for _ in range(60)]
    lines = [f"{' '.join(words)} u{n}" for n, words in enumerate(reviews)]
    (folder / "unlabeled.txt").write_text("".join(f"{line}\n" for line in lines))
    good = [sum(word in GOOD for word in words) / 3 for words in reviews]
    rows = [f"{line},{1 - share},{share}\n" for line, share in zip(lines, good, strict=True)]
    (folder / "labeled.csv").write_text("".join(["text,probability_neg,probability_pos\n", *rows]))
