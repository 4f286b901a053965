"""A finished run whose explanations are tested: its network, and the reviews of a split that are used.

Shape suffix: N reviews.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np

from imdbattn.comparison.runs import Run
from imdbattn.data.corpus import prepare
from imdbattn.data.ragged import Batch
from imdbattn.data.sampling import Batches, EvalBatches
from imdbattn.data.tokens import FIRST_WORD
from imdbattn.errors import UserError
from imdbattn.files import sha256_of
from imdbattn.nn.ladder import Classifier
from imdbattn.run_folder import open_run
from imdbattn.runs.predict import with_changes
from imdbattn.runs.score import check_fingerprint
from imdbattn.settings.schema import Faithfulness
from imdbattn.tasks.review_net import batch_options
from imdbattn.tasks.review_predictor import ReviewPredictor
from imdbattn.tasks.weights import Trained, read_checkpoint


class Subject:
    """Raises UserError if the run is not of a Classifier, or if its files or its data are damaged or have changed.

    folder: of the measurements, in `out`, named by the run and its checkpoint.
    """

    def __init__(self, run: Run, out: Path, cfg: Faithfulness):
        self.run = run
        settings, self.checkpoint = open_run(str(run.folder), cfg.trust)
        self.last_checkpoint = self.checkpoint.with_name("last.ckpt")
        self.key = sha256_of(self.checkpoint)[:8]  # identifies the weights
        self.folder = out / "runs" / f"{self.checkpoint.parents[1].name}-{self.key}"
        self.last_key = sha256_of(self.last_checkpoint)[:8] if self.last_checkpoint.exists() else None
        self.settings = with_changes(settings, cfg.data.model_dump())
        self.corpus = prepare(self.settings.data)
        check_fingerprint(run.folder, cfg.split, self.corpus)
        self.net = self.network(self.checkpoint)
        self.batches = Batches(self.corpus.splits[cfg.split], **batch_options(self.settings))
        self.lengths_N = self.batches.lengths_N()
        self.selected_N = np.random.default_rng(cfg.seed).permutation(len(self.batches))[: cfg.reviews]

    def network(self, checkpoint: Path) -> Classifier:
        net = ReviewPredictor.load(self.settings, Trained.of(read_checkpoint(checkpoint)), self.corpus.glove).net
        if not isinstance(net, Classifier):
            raise UserError(f"its model is a {type(net).__name__}, not an imdbattn.nn.Classifier")
        return net.requires_grad_(False)

    @cached_property
    def last(self) -> Classifier | None:
        """The network at the end of training; None if the run does not have it, or if it is also the best one."""
        if self.last_key is None:
            return None
        both = (self.last_checkpoint, self.checkpoint)
        last_step, best_step = (read_checkpoint(file).get("global_step") for file in both)
        return None if last_step == best_step else self.network(self.last_checkpoint)

    @property
    def rows_N(self) -> np.ndarray:
        """Row numbers of the selected reviews in the source."""
        return self.batches.split.rows[self.selected_N]

    @property
    def negation(self) -> int | None:
        """The id of "not" in reviews whose deciding words are known, those of the order probe, else None."""
        words = self.corpus.glove.words if self.corpus.source == "order_probe" else []
        return words.index("not") + FIRST_WORD if "not" in words else None

    def items(self, reviews: int, positions: int) -> Iterator[tuple[np.ndarray, Batch]]:
        """The first `reviews` of the selected ones: their places among these, and batches of at most `positions`."""
        chosen_N = self.selected_N[:reviews]
        for _, places in EvalBatches(self.lengths_N[chosen_N], positions):
            yield places, self.batches[0, chosen_N[places]]
