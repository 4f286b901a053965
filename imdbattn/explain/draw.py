"""Pictures that need a trained model, or its parts; the figures themselves are in explain/figures.

Shape suffixes: T positions, D width, S draws, K keys, W widths that were measured.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from imdbattn.comparison.figures import learning_curves
from imdbattn.data.corpus import Corpus, ReviewCorpus
from imdbattn.data.pairs import PairCorpus
from imdbattn.data.tokens import Tokenizer
from imdbattn.explain import alignment
from imdbattn.explain.alignment import Decoded
from imdbattn.explain.figures import Scaling, by_distance, dot_products, drawn, png, scaling
from imdbattn.explain.show import Explanation, write_page
from imdbattn.files import write_atomically
from imdbattn.nn.ladder import Learned, Sinusoidal, sinusoids
from imdbattn.nn.scores import Dot, ScaledDot
from imdbattn.tasks.learner import ReviewClassifier
from imdbattn.tasks.reader import Reader
from imdbattn.tasks.seq2seq import Outputs, SequenceWriter, Writer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

SCORES = {"$q\\cdot k$": Dot, "$q\\cdot k/\\sqrt{d}$": ScaledDot}
QUARTILES = (0.25, 0.5, 0.75)
WIDTHS = [2**power for power in range(2, 11)]  # 4 to 1024
WORDS = 30  # that the review has at least which a run's own picture shows


@contextmanager
def never_fatal() -> Iterator[None]:
    """A picture that cannot be drawn is a warning: the run has its results."""
    try:
        yield
    except Exception as error:
        log.warning("Some pictures could not be drawn: %s: %s", type(error).__name__, error)


def draw_run(module: ReviewClassifier, corpus: ReviewCorpus, cfg: Mapping[str, Any], folder: Path) -> None:
    """Draws learning curves, positions and the attention to one review into pictures/ of a run that has just ended.

    The review is the shortest of at least thirty words of the last split that was scored. A failure is only a warning.
    """
    with never_fatal():
        draw_curves(folder)
        draw_positions(module.net, cfg, folder / "pictures")
        reader = Reader(cfg, module.eval(), Tokenizer(cfg["data"]["tokenizer"], corpus.glove.words))
        text = chosen_text(corpus, "test" if cfg["test"] else "validation")
        draw_attention(reader.explain(text), folder / "pictures")


def draw_writer_run(module: SequenceWriter, corpus: PairCorpus, cfg: Mapping[str, Any], folder: Path) -> None:
    """The same of an encoder-decoder: learning curves, and the map of one source, the median in length.

    It is one that was written rightly, if there is any. A failure is only a warning.
    """
    with never_fatal():
        draw_curves(folder, corpus.items)
        split = corpus.splits["test" if cfg["test"] else "validation"]
        outputs: Outputs = module.scores
        right_N = outputs.right_N if outputs.right_N.any() else torch.ones(len(outputs.rows_N), dtype=torch.bool)
        places = right_N.nonzero()[:, 0]
        place = places[outputs.lengths_N[places].argsort(stable=True)[len(places) // 2]]
        chosen = int(outputs.rows_N[place])  # they are not all of the split where trainer.limit_test_batches is set
        (found,) = Writer(cfg, module.eval()).write([split.texts[chosen]])
        draw_alignment(replace(found, reference=split.references[chosen][0]), folder / "pictures")


def draw_guesser_run(module: Any, corpus: Corpus, cfg: Mapping[str, Any], folder: Path) -> None:
    """The learning curves of pretraining. A failure is only a warning."""
    with never_fatal():
        draw_curves(folder, "masked words")


def draw_curves(folder: Path, *items: str) -> None:
    """Writes learning_curves.png, where the run has kept curves. items: what its data are called, if not reviews."""
    if (file := folder / "metrics.csv").exists():
        write_picture(learning_curves(file, *items), folder / "pictures" / "learning_curves.png")


def draw_alignment(found: Decoded, folder: Path, name: str = "attention") -> list[Path]:
    """Writes <name>.png, where the model attends, and <name>.html; returns their paths."""
    image, paths = alignment.drawn(found), []
    if image is not None:
        paths.append(folder / f"{name}.png")
        write_atomically(paths[0], image)
    return [*paths, alignment.write_page([found], [image], folder / f"{name}.html")]


def chosen_text(corpus: ReviewCorpus, split: str) -> str:
    """The shortest review of at least WORDS words, or else the longest; of several the first."""
    import pyarrow.parquet as pq

    lengths_N = corpus.splits[split].lengths
    enough = lengths_N >= WORDS
    at = lengths_N.masked_fill(~enough, int(lengths_N.max()) + 1).argmin() if enough.any() else lengths_N.argmax()
    return pq.read_table(corpus.texts(split), columns=["text"])["text"][int(at)].as_py()


def draw_attention(found: Explanation, folder: Path, name: str = "attention", words: int = 40) -> list[Path]:
    """Writes <name>.png, where anything attends, and <name>.html; returns their paths."""
    image, paths = drawn(found, words), []
    if image is not None:
        paths.append(folder / f"{name}.png")
        write_atomically(paths[0], image)
    return [*paths, write_page([found], [image], folder / f"{name}.html")]


def draw_positions(net: Any, cfg: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes positions.png, distances.png, or both, of a model that has them, and returns their paths."""
    tables, layers = position_tables(net, cfg["data"]["max_tokens"] or 512), distances_added(net)
    figures = {"positions": tables and dot_products(tables), "distances": layers and by_distance(layers)}
    return [write_picture(figure, folder / f"{name}.png") for name, figure in figures.items() if figure]


@torch.no_grad()
def distances_added(net: Any, reach: int = 20) -> dict[str, np.ndarray]:
    """By layer, what distances from -reach to reach add to each head's score: (H, 2 reach + 1)."""
    found = {}
    for number, layer in enumerate(net.layers, 1):
        # A user's own layer may have neither.
        if (distances := getattr(getattr(layer, "f", None), "distances", None)) is not None:
            query_1HTW, key_11TW = distances(torch.arange(2 * reach + 1, device=distances.cos_HM.device)[None])
            found[f"layer {number}"] = (query_1HTW[0, :, reach] @ key_11TW[0, 0].T).float().cpu().numpy()
    return found


def position_tables(net: Any, length: int) -> dict[str, np.ndarray]:
    """The first `length` position vectors (T, D) by name: a learned table stands beside sinusoids of its width."""
    positions = net.positions
    if isinstance(positions, Sinusoidal):
        return {"this model's sinusoidal positions": positions.pe_TD[:length].cpu().numpy()}
    if isinstance(positions, Learned):
        learned_TD = positions.table.weight[:length].detach().float().cpu().numpy()
        same_TD = sinusoids(*learned_TD.shape).numpy()
        return {"sinusoidal positions of this width": same_TD, "this model's learned positions": learned_TD}
    return {}


def draw_scaling(folder: Path) -> Path:
    """Writes scaling.png and returns its path."""
    return write_picture(scaling(measure_scaling(WIDTHS)), folder / "scaling.png")


def write_picture(figure: Figure, path: Path) -> Path:
    """Writes the figure as PNG, whole or not at all, and returns its path."""
    write_atomically(path, png(figure))
    return path


@torch.no_grad()
def measure_scaling(widths: Sequence[int], keys: int = 64, draws: int = 256, seed: int = 1) -> Scaling:
    """Scores of `draws` random queries, each with `keys` random keys of its own, at each width: unscaled and scaled."""
    generator = torch.Generator().manual_seed(seed)
    variance, entropy, gradient = ({name: [] for name in SCORES} for _ in range(3))  # type: ignore[var-annotated]
    for width in widths:
        q_S1D, k_SKD = (torch.randn(draws, size, width, generator=generator) for size in (1, keys))
        for name, score in SCORES.items():
            scores_SK = score(width, width)(q_S1D, k_SKD)[:, 0].double()
            p_SK = scores_SK.softmax(-1)
            jacobian_SKK = p_SK.diag_embed() - p_SK[:, :, None] * p_SK[:, None]
            variance[name].append(scores_SK.var().item())
            entropy[name].append(np.quantile(torch.special.entr(p_SK).sum(-1), QUARTILES))
            gradient[name].append(np.quantile(torch.linalg.matrix_norm(jacobian_SKK), QUARTILES))
    arrays = ({name: np.array(values).T for name, values in found.items()} for found in (variance, entropy, gradient))
    return Scaling(keys, np.array(widths), *arrays)
