"""Draws pictures at the end of a run. A picture that cannot be drawn causes only a warning."""

import logging
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow.parquet as pq

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.errors import only_warning
from imdbattn.explain.figures import learning_curves
from imdbattn.files import write_atomically
from imdbattn.pages import png
from imdbattn.run_folder import read_curves

log = logging.getLogger(__name__)

WORDS = 30  # minimum number of words of the review to draw


def only_warnings() -> AbstractContextManager[None]:
    return only_warning(log, "Some pictures could not be drawn")


def draw_curves(folder: Path, training: str, validation: str) -> None:
    """Writes learning_curves.png if the run has metrics.csv. training, validation: labels of the accuracy lines."""
    if (file := folder / "metrics.csv").exists():
        figure = learning_curves(read_curves(file), training, validation)
        write_atomically(folder / "pictures" / "learning_curves.png", png(figure))


def short_review(corpus: ReviewCorpus, split: str) -> str:
    """The shortest review of at least WORDS words, or else the longest; the first of several."""
    lengths_N = corpus.splits[split].lengths
    enough = lengths_N >= WORDS
    at = lengths_N.masked_fill(~enough, int(lengths_N.max()) + 1).argmin() if enough.any() else lengths_N.argmax()
    return pq.read_table(corpus.texts(split), columns=["text"])["text"][int(at)].as_py()
