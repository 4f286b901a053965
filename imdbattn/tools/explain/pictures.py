"""The pictures of a finished run: learning curves, positions, and the attention to one text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.data.symbols import joined_symbols
from imdbattn.folders.run import read_curves
from imdbattn.folders.run_folder import ATTENTION_SHARE
from imdbattn.io.files import write_atomically
from imdbattn.report.pages import png
from imdbattn.runs.callbacks import fixed_batches, measure
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tasks.seq2seq.predictor import Seq2SeqPredictor
from imdbattn.tools.explain.figures import attention_over_epochs, draw_positions, learning_curves
from imdbattn.tools.explain.show import write_attention

if TYPE_CHECKING:
    from imdbattn.tasks.learner import Learner
    from imdbattn.tasks.loaders import BatchData
    from imdbattn.tasks.reviews.module import ReviewClassifier, ReviewData
    from imdbattn.tasks.seq2seq.module import PairData, Seq2SeqModule


def draw_curves(module: Learner, data: BatchData, folder: Path) -> None:
    """Draws the learning curves, and the entropy of attention, into pictures/ of a run folder.

    module: the trained Learner. data: its BatchData.
    """
    if (file := folder / "metrics.csv").exists():
        curves = read_curves(file)
        pictures = folder / "pictures"
        figure = learning_curves(curves, *module.curves)
        write_atomically(pictures / "learning_curves.png", png(figure))
        if any(name.startswith(ATTENTION_SHARE) for name in curves):
            batches = fixed_batches(data, module.cfg.attention_reviews)
            shares = measure(module, batches).query_shares
            figure = attention_over_epochs(curves, shares)
            write_atomically(pictures / "attention_entropy.png", png(figure))


def draw_review(module: ReviewClassifier, data: ReviewData, folder: Path) -> None:
    """Draws the learning curves, the positions, and the attention to a short review.

    module: the trained ReviewClassifier. data: its ReviewData.
    """
    draw_curves(module, data, folder)
    cfg = module.cfg
    pictures = folder / "pictures"
    draw_positions(module.net, cfg.data.max_tokens or 512, pictures)
    predictor = ReviewPredictor(cfg, module.net, module.hparams, data.corpus.glove)
    text = data.short_review("test" if cfg.test else "validation")
    write_attention(predictor.explain(text), pictures)


def draw_pair(module: Seq2SeqModule, data: PairData, folder: Path) -> None:
    """Draws the learning curves, and the attention to one source.

    It is the first source with a correct output, or else the first.
    module: the trained Seq2SeqModule. data: its PairData.
    """
    draw_curves(module, data, folder)
    scores = module.scores
    split = data.corpus.splits["test" if module.cfg.test else "validation"]
    # not all items are scored if trainer.limit_test_batches is set
    item = int(scores.items_N[scores.right_N.int().argmax()])
    predictor = Seq2SeqPredictor(module.cfg, module.net, module.hparams)
    source = joined_symbols(split.texts[item].split(" "), module.cfg.data, 0)
    (result,) = predictor.write([source])
    reference = predictor.joined(split.references[item][0].split(" "))
    write_attention(replace(result, reference=reference), folder / "pictures")
