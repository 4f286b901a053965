"""Pictures of a run that has just ended, by task. A picture that cannot be drawn is only a warning."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from imdbattn.data.corpus import ReviewCorpus
from imdbattn.data.pairs import PairCorpus
from imdbattn.data.tokens import Tokenizer
from imdbattn.explain.figures import draw_positions, learning_curves, write_png
from imdbattn.explain.show import write_attention
from imdbattn.run_folder import read_curves
from imdbattn.tasks.learner import ReviewClassifier
from imdbattn.tasks.reader import Reader
from imdbattn.tasks.seq2seq import Outputs, SequenceWriter, Writer

log = logging.getLogger(__name__)

WORDS = 30  # least number of words of the review that is drawn


@contextmanager
def never_fatal() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.warning("Some pictures could not be drawn: %s: %s", type(error).__name__, error)


@never_fatal()
def draw_run(module: ReviewClassifier, corpus: ReviewCorpus, cfg: Mapping[str, Any], folder: Path) -> None:
    """Draws learning curves, positions and the attention to one review of the last split that was scored."""
    draw_curves(folder, "training, words dropped", "validation")
    draw_positions(module.net, cfg["data"]["max_tokens"] or 512, folder / "pictures")
    reader = Reader(cfg, module.eval(), Tokenizer(cfg["data"]["tokenizer"], corpus.glove.words))
    text = chosen_text(corpus, "test" if cfg["test"] else "validation")
    write_attention(reader.explain(text), folder / "pictures")


def chosen_text(corpus: ReviewCorpus, split: str) -> str:
    """The shortest review of at least WORDS words, or else the longest; of several the first."""
    import pyarrow.parquet as pq

    lengths_N = corpus.splits[split].lengths
    enough = lengths_N >= WORDS
    at = lengths_N.masked_fill(~enough, int(lengths_N.max()) + 1).argmin() if enough.any() else lengths_N.argmax()
    return pq.read_table(corpus.texts(split), columns=["text"])["text"][int(at)].as_py()


@never_fatal()
def draw_writer_run(module: SequenceWriter, corpus: PairCorpus, cfg: Mapping[str, Any], folder: Path) -> None:
    """Draws learning curves and the attention to one source, of median length and written correctly if any is."""
    draw_curves(folder, "training, single symbols", f"validation, whole {corpus.items}")
    split = corpus.splits["test" if cfg["test"] else "validation"]
    outputs: Outputs = module.scores
    right_N = outputs.right_N if outputs.right_N.any() else torch.ones(len(outputs.rows_N), dtype=torch.bool)
    places = right_N.nonzero()[:, 0]
    place = places[outputs.lengths_N[places].argsort(stable=True)[len(places) // 2]]
    row = int(outputs.rows_N[place])  # not all rows are scored if trainer.limit_test_batches is set
    (written,) = Writer(cfg, module.eval()).write([split.texts[row]])
    reference = split.references[row][0]
    shown = reference.replace(" ", "") if corpus.items == "strings" else reference
    write_attention(replace(written, reference=shown), folder / "pictures")


@never_fatal()
def draw_guesser_run(module: Any, corpus: ReviewCorpus, cfg: Mapping[str, Any], folder: Path) -> None:
    """Draws the learning curves of pretraining."""
    draw_curves(folder, "training", "validation")


def draw_curves(folder: Path, training: str, validation: str) -> None:
    """Writes learning_curves.png if the run has metrics.csv. training, validation: names of the lines of accuracy."""
    if (file := folder / "metrics.csv").exists():
        figure = learning_curves(read_curves(file), training, validation)
        write_png(figure, folder / "pictures" / "learning_curves.png")
