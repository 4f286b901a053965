"""Measures finished runs. Each measurement is a Parquet file, so that a stopped command can
continue.

Shape suffixes: B reviews of a batch, N reviews, T positions, S shares of the words.
"""

import copy
import hashlib
import json
import pkgutil
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from tqdm import tqdm

from imdbattn.data.corpus import prepare_reviews, read_texts
from imdbattn.data.ragged import Batch, Batches, EvalBatches, read_places
from imdbattn.data.tokens import FIRST_WORD
from imdbattn.errors import UserError
from imdbattn.io.files import expanded, make_folder, sha256_of, write_table
from imdbattn.nn.ladder import Classifier
from imdbattn.report.finished_runs import Run as FinishedRun
from imdbattn.report.finished_runs import find_runs, grouped, skip
from imdbattn.runs.cpu import keep_memory, use_onednn
from imdbattn.runs.predict import with_changes
from imdbattn.runs.run import Run
from imdbattn.runs.score import check_fingerprint
from imdbattn.settings.safety import untrusted
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tools.faithfulness import erasure, scores
from imdbattn.tools.faithfulness.pairs import edited_words, read_pairs
from imdbattn.tools.faithfulness.settings import Faithfulness
from imdbattn.tools.faithfulness.summary import Tables, spearman, summarize

VERSION = 4  # of the measurements; increment it when they change
POSITIONS = 8_192  # of a batch

Columns = dict[str, Any]  # name -> a list or a tensor, with an element for each review of a batch


def run_experiment(folders: Sequence[str], out: Path, cfg: Faithfulness) -> list[dict[str, Any]]:
    """Measures the classifiers in `folders` and returns a summary for each set of reviews
    (faithfulness/summary).

    Raises UserError if there is none, or if `out` cannot be written.
    """
    use_onednn()
    keep_memory()
    own = own_scores(cfg)
    runs, skipped = find_runs(folders)
    subjects = []
    for run in runs:
        try:
            subjects.append(Subject(run, out, cfg, own))
        except (UserError, OSError) as error:  # such as data that are not on this machine
            skipped.append(skip(run.folder, error))
    if not subjects:
        raise UserError(
            f"no run can be measured: {skipped[-1]['folder']} ({skipped[-1]['reason']})"
        )
    make_folder(out, "choose another folder")
    total = sum(len(part.chosen_N) for subject in subjects for part in subject.parts)
    with (
        tqdm(total=total, unit=" reviews", dynamic_ncols=True, smoothing=0) as bar,
        torch.no_grad(),
    ):
        for subject, part in ((one, part) for one in subjects for part in one.parts):
            bar.set_description(
                f"{subject.run.model} seed {subject.run.metrics['seed']}, {part.name}",
                refresh=False,
            )
            subject.measure(part, bar.update)
    summaries = []
    for group in grouped(subjects, lambda one: one.fingerprint):
        measured = [(one.run, one.tables()) for one in group]
        summaries.append(summarize(measured, group[0].fingerprint, cfg) | {"skipped": skipped})
    return summaries


def own_scores(cfg: Faithfulness) -> dict[str, partial[Any]]:
    """The user's functions among the scores, by their `_target_`.

    Raises UserError for an unknown name, or if the package of a function is not trusted.
    """
    own = [score for score in cfg.scores if not isinstance(score, str)]
    for name in cfg.scores:
        if isinstance(name, str) and name not in scores.SCORES:
            raise UserError(f"scores: {name} is none of {', '.join(scores.SCORES)}")
    for _, target, package in untrusted(
        {"scores": [score.model_dump() for score in own]}, cfg.trust
    ):
        raise UserError(f"scores: {target} is your own code: add trust={package}")
    return {
        one.target: partial(pkgutil.resolve_name(one.target), **(one.model_extra or {}))
        for one in own
    }


class Part(NamedTuple):
    """A measurement of reviews of a source."""

    name: str
    options: Mapping[str, Any]  # what its numbers depend on in addition to the run
    source: Batches
    chosen_N: np.ndarray  # the reviews
    measure: Callable[[Batch], Columns]  # called with each batch

    @property
    def file(self) -> str:
        digest = hashlib.sha256(
            json.dumps([VERSION, self.options, len(self.chosen_N)]).encode()
        ).hexdigest()[:8]
        return f"{self.name}-{digest}.parquet"


class Subject:
    """A finished run whose explanations are tested: its network, and the reviews of a split that
    are used.

    folder: of the measurements, in `out`, named by the run and its checkpoint. Raises UserError if
    the run is not of a Classifier, if a part does not record its attention, or if its files or data
    are damaged or have changed.
    """

    def __init__(
        self, run: FinishedRun, out: Path, cfg: Faithfulness, own: Mapping[str, partial[Any]]
    ):
        if not run.is_classifier:
            raise UserError("an encoder-decoder, which has no label to explain")
        self.run, self.cfg, self.own = run, cfg, own
        opened = Run(run.folder, cfg.trust)
        checkpoint, settings = opened.checkpoint, opened.settings
        self.key = sha256_of(checkpoint)[:8]  # identifies the weights
        self.folder = out / "runs" / f"{checkpoint.parents[1].name}-{self.key}"
        self.settings = with_changes(settings, cfg.data.model_dump())
        self.corpus = prepare_reviews(self.settings.data)  # type: ignore[arg-type]
        check_fingerprint(run.folder, cfg.split, self.corpus)
        self.fingerprint = self.corpus.fingerprints[cfg.split]
        self.predictor = ReviewPredictor.load(self.settings, opened.weights, self.corpus.glove)
        self.net = self.predictor.net.requires_grad_(False)
        if not isinstance(self.net, Classifier):
            raise UserError(
                f"its model is a {type(self.net).__name__}, not an imdbattn.nn.Classifier"
            )
        self.batches = Batches(self.corpus.splits[cfg.split], **self.predictor.batch_options)
        self.chosen_N = np.random.default_rng(cfg.seed).permutation(len(self.batches))[
            : cfg.reviews
        ]
        scores.see(self.net, self.batches[0, self.chosen_N[:1]])  # raises UserError
        is_probe = self.corpus.source == "order_probe"
        words = self.corpus.glove.words if is_probe else []
        # its reviews have known reasons
        self.negation = words.index("not") + FIRST_WORD if "not" in words else None
        place = expanded(cfg.pairs_of) if cfg.pairs_of and not is_probe else None
        self.pairs = read_pairs(place, run.labels, self.texts) if place else []

    @cached_property
    def texts(self) -> list[str]:
        return read_texts(self.corpus.texts(self.cfg.split))

    @cached_property
    def parts(self) -> list[Part]:
        """Those that apply to the run, in the order in which they are measured."""
        cfg, common = self.cfg, {"split": self.cfg.split, "seed": self.cfg.seed}
        names = [name for name in scores.applicable(self.net) if name in (*cfg.scores, "random")]
        limits = dict.fromkeys((*names, *self.own), cfg.reviews)  # also of pairs
        limits |= dict.fromkeys(
            limits.keys() & {*scores.COSTLY, *self.own}, min(cfg.costly_reviews, cfg.reviews)
        )

        def part(
            name: str, options: dict[str, Any], reviews: int, measure: Callable[[Batch], Columns]
        ) -> Part:
            return Part(name, common | options, self.batches, self.chosen_N[:reviews], measure)

        parts = []
        for name, reviews in limits.items():
            keywords = {"keywords": self.own[name].keywords} if name in self.own else {}
            parts.append(
                part(
                    name, {"shares": cfg.shares} | keywords, reviews, partial(self.explained, name)
                )
            )
        search, extremes = (
            cfg.search,
            partial(erasure.extremes, self.net, shares=cfg.shares, beam=cfg.search.beam),
        )
        parts.append(
            part("extremes", {"shares": cfg.shares, "beam": search.beam}, search.reviews, extremes)
        )
        stages = randomized(self.net, cfg.seed) if cfg.random_reviews else {}
        for name in names:
            measure = partial(self.correlated, name, stages)
            parts += (
                [part(f"randomized-{name}", {}, cfg.random_reviews, measure)]
                if name != "random"
                else []
            )
        parts += self.pair_parts(limits, common) if self.pairs else []
        return [part for part in parts if len(part.chosen_N)]

    def read_part(self, text: str) -> str:
        """Returns the words that the model reads of a text, separated by spaces."""
        words = self.predictor.words_read(text)
        return " ".join(text[word.start : word.end] for word in words)

    def score(self, name: str, batch: Batch, texts: Sequence[str]) -> Tensor:
        """(B, T), for the label that is predicted. texts: of all reviews of the source."""
        if name not in self.own:
            return scores.SCORES[name][1](self.net, batch, scores.predicted(self.net, batch))
        read = [self.read_part(texts[row]) for row in batch.rows_B.tolist()]
        found = self.own[name](read, lambda several: self.predictor.classify(several).numpy())
        scores_BT = torch.zeros(batch.tokens_BT.shape)
        for scores_T, text, values, words in zip(
            scores_BT, read, found, batch.lengths_B.tolist(), strict=True
        ):
            if len(values) != words:
                raise UserError(
                    f"scores: {name} returned {len(values)} scores for {words} words: {text[:80]}"
                )
            scores_T[:words] = torch.as_tensor(values)
        return scores_BT

    def explained(self, name: str, batch: Batch) -> Columns:
        """Scores of the words, the seconds that they took, and their evaluation by erasure and
        known rationales.
        """
        start = time.perf_counter()
        scores_BT = self.score(name, batch, self.texts if name in self.own else ())
        seconds, label_B = (
            (time.perf_counter() - start) / len(scores_BT),
            scores.predicted(self.net, batch),
        )
        ranks_BT, lengths = erasure.ranks(scores_BT, batch), batch.lengths_B.tolist()
        comprehensiveness_BS, sufficiency_BS = erasure.erase(
            self.net, batch, ranks_BT, self.cfg.shares
        )
        columns: Columns = {
            "right": label_B == batch.labels_B,
            "seconds": [seconds] * len(lengths),
            "scores": [
                scores_T[:length].tolist()
                for scores_T, length in zip(scores_BT, lengths, strict=True)
            ],
            "comprehensiveness": comprehensiveness_BS,
            "sufficiency": sufficiency_BS,
        }
        if name == "integrated_gradients":
            change_B = scores.change_from_zero(self.net, batch, label_B)
            columns["incompleteness"] = (scores_BT.sum(1) - change_B).abs() / change_B.abs().clamp(
                min=1e-6
            )
        if self.negation is not None:
            columns["auprc"] = erasure.average_precision(
                ranks_BT, erasure.true_words(batch, self.negation)
            )
        return columns

    def correlated(self, name: str, stages: Mapping[str, Classifier], batch: Batch) -> Columns:
        """Rank correlations with the scores of each randomized network, for the label that the
        trained one predicts.

        efficient, smooth: the forms of Hedström et al. 2024 for the network whose weights are all
        random, see `scores.rise_of_complexity` and `scores.smoothed`. Scores that take long have no
        smooth form.
        """
        label_B, score = scores.predicted(self.net, batch), scores.SCORES[name][1]

        def compared(compare: Callable[..., float], *both: Tensor) -> list[float]:
            rows = zip(*both, batch.lengths_B.tolist(), strict=True)
            return [
                compare(one_T[:length].numpy(), other_T[:length].numpy())
                for one_T, other_T, length in rows
            ]

        trained_BT, columns = score(self.net, batch, label_B), Columns()
        for stage, net in stages.items():
            other_BT = score(net, batch, label_B)
            columns[stage] = compared(spearman, trained_BT, other_BT)
        columns["efficient"] = compared(scores.rise_of_complexity, trained_BT, other_BT)
        if name not in scores.COSTLY:
            both = scores.smoothed(score, (self.net, net), batch, label_B, self.cfg.seed)
            columns["smooth"] = compared(spearman, *both)
        return columns

    def pair_parts(self, limits: Mapping[str, int], options: dict[str, Any]) -> Iterator[Part]:
        """Labels of both texts of the pairs, and how well scores find edited words. limits: of
        pairs for each score.
        """
        pairs, words_of = self.pairs, self.predictor.tokenizer.words
        data: Any = self.settings.data
        changed = []  # of each word that is read
        for one in pairs:
            before = [word.text for word in words_of(one.original)]
            after = [word.text for word in words_of(one.edited)]
            edits = edited_words(before, after)
            changed.append(
                [
                    edits[place]
                    for place in read_places(len(edits), data.max_tokens, data.head_share)
                ]
            )
        originals, all_N = [one.original for one in pairs], np.arange(len(pairs))
        options = options | {"pairs": hashlib.sha256(repr(pairs).encode()).hexdigest()[:8]}
        batches = self.predictor.batches(originals)

        def labels(batch: Batch) -> Columns:
            rows = batch.rows_B.tolist()
            label_B, edited_label_B = torch.tensor(
                [(pairs[row].label, pairs[row].edited_label) for row in rows]
            ).T
            first_B = scores.predicted(self.net, batch) == label_B
            second_B = (
                self.predictor.classify([pairs[row].edited for row in rows]).argmax(1)
                == edited_label_B
            )
            shares = [float(np.mean(changed[row])) for row in rows]
            return {
                "original": first_B,
                "edited": second_B,
                "both": first_B & second_B,
                "share": shares,
            }

        def found(name: str, batch: Batch) -> Columns:
            true_BT = torch.zeros(batch.tokens_BT.shape, dtype=torch.bool)
            for true_T, row in zip(true_BT, batch.rows_B.tolist(), strict=True):
                true_T[: len(changed[row])] = torch.tensor(changed[row], dtype=torch.bool)
            precision_B = erasure.average_precision(
                erasure.ranks(self.score(name, batch, originals), batch), true_BT
            )
            # A pair whose edits only add words has no edited word in the original.
            return {"human": precision_B.masked_fill(~true_BT.any(1), torch.nan)}

        yield Part("pairs", options, batches, all_N, labels)
        for name, number in limits.items():
            yield Part(f"human-{name}", options, batches, all_N[:number], partial(found, name))

    def measure(self, part: Part, progress: Callable[[int], Any]) -> None:
        """Writes the file of a part if it does not exist: a row for each review, in the order of
        their selection.
        """
        file, source = self.folder / part.file, part.source
        if file.exists():
            progress(len(part.chosen_N))
            return
        torch.manual_seed(zlib.crc32(f"{part.name} {self.cfg.seed} {self.key}".encode()))
        measured: list[int] = []
        columns: Columns = defaultdict(list)
        for _, places in EvalBatches(source.lengths_N()[part.chosen_N], POSITIONS):
            batch = source[0, part.chosen_N[places]]
            measured += places.tolist()
            for name, values in (
                {"row": source.split.rows[batch.rows_B]} | part.measure(batch)
            ).items():
                columns[name] += values if isinstance(values, list) else values.tolist()
            progress(len(places))
        order = np.argsort(measured)
        ordered = {}
        for name, values in columns.items():
            ordered[name] = [values[place] for place in order]
        write_table(file, ordered)

    def tables(self) -> Tables:
        """The measurements by name of the part."""
        return {part.name: pq.read_table(self.folder / part.file) for part in self.parts}


def randomized(net: Classifier, seed: int) -> dict[str, Classifier]:
    """Networks with random weights from the output downwards (Adebayo et al. 2018, section 4.1), by
    the last such part.

    Random weights have the mean and the standard deviation of the trained ones. Word vectors
    remain.
    """
    layers = {
        f"layer {number}": (f"layers.{number - 1}.",) for number in range(len(net.layers), 0, -1)
    }
    parts = {
        "output": ("head.",),
        "pooling": ("pooling.",),
        **layers,
        "input": ("context.", "positions.", "resize."),
    }
    generator, found = torch.Generator().manual_seed(seed), {}
    for name, starts in parts.items():
        net = copy.deepcopy(net, {id(net.embedding): net.embedding})
        weights = [
            weight
            for start in starts
            for key, weight in net.named_parameters()
            if key.startswith(start)
        ]
        for weight in weights:
            nn.init.normal_(
                weight, weight.mean().item(), weight.std(correction=0).item(), generator
            )
        if weights:
            found[name] = net
    return found
