"""Measures finished runs. Each measurement is a file, so a stopped command can be continued.

Shape suffixes: B reviews of a batch, N reviews, T positions, S shares of the words.
"""

import copy
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from tqdm import tqdm

from imdbattn.data.corpus import prepare_reviews, read_texts
from imdbattn.data.plans import EvalPlans
from imdbattn.data.ragged import Batch, BatchMaker, kept_indices
from imdbattn.data.tokenizer import FIRST_WORD
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.folders.run import Run
from imdbattn.io.files import expanded, sha256_of, write_table
from imdbattn.nn.ladder import Classifier
from imdbattn.report.finished_runs import FinishedRun, as_skipped, find_runs, grouped
from imdbattn.runs.apply import with_changes
from imdbattn.runs.environment import speed_up_cpu
from imdbattn.runs.evaluate import check_fingerprint
from imdbattn.settings.code_version import code_version
from imdbattn.settings.command_settings import FaithfulnessSettings
from imdbattn.settings.keys import hexdigest
from imdbattn.settings.objects import import_object
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tasks.task import settings_of
from imdbattn.tools.faithfulness import attributions, erasure
from imdbattn.tools.faithfulness.edited_pairs import EditedPair, edited_words, read_edited_pairs
from imdbattn.tools.faithfulness.summary import Summary, Tables, summarize

VERSION = 7  # version of the measurements; increment it when they change

# name -> an element for each review of a batch
MeasuredColumns = Mapping[str, Tensor | Sequence[object]]
# a user's function: texts -> an attribution for each word of each text
CustomAttribution = partial[Sequence[Sequence[float]]]


def run_experiment(
    folders: Sequence[str], out: Path, options: FaithfulnessSettings
) -> list[Summary]:
    """Measures the classifiers in `folders`. Returns a summary for each set of reviews.

    Raises UserError if there is none, or if `out` cannot be written.
    """
    speed_up_cpu()
    custom = custom_attributions(options)
    runs, skipped = find_runs(folders)
    subjects = []
    for run in runs:
        try:
            subjects.append(Subject(run, out, options, custom))
        except (UserError, OSError) as error:  # data, for example, may be missing here
            skipped.append(as_skipped(run.folder, error))
    if not subjects:
        raise UserError(
            f"no run can be measured: {skipped[-1]['folder']} ({skipped[-1]['reason']})"
        )
    out.mkdir(parents=True, exist_ok=True)
    steps = [(subject, measurement) for subject in subjects for measurement in subject.measurements]
    total = sum(len(measurement.chosen_N) for _, measurement in steps)
    bar = tqdm(total=total, unit=" reviews", dynamic_ncols=True, smoothing=0)
    with bar, torch.no_grad():
        for subject, measurement in steps:
            title = f"{subject.run.model} seed {subject.run.metrics['seed']}"
            bar.set_description(f"{title}, {measurement.name}", refresh=False)
            subject.measure(measurement, bar.update)
    summaries = []
    for group in grouped(subjects, lambda subject: subject.fingerprint):
        measured = [(subject.run, subject.tables()) for subject in group]
        summaries.append(summarize(measured, group[0].fingerprint, options, skipped))
    return summaries


def custom_attributions(options: FaithfulnessSettings) -> dict[str, CustomAttribution]:
    """Returns the user's functions among the attributions, by their `_target_`.

    Raises UserError for an unknown name, or a function that cannot be imported.
    """
    custom: dict[str, CustomAttribution] = {}
    for attribution in options.attributions:
        if not isinstance(attribution, str):
            function = import_object(attribution.target, "attributions._target_")
            custom[attribution.target] = partial(function, **(attribution.model_extra or {}))
        elif attribution not in attributions.ATTRIBUTIONS:
            known = ", ".join(attributions.ATTRIBUTIONS)
            raise UserError(f"attributions: {attribution} is none of {known}")
    return custom


class Measurement(NamedTuple):
    """A measurement of some reviews of a split, or of the originals of pairs."""

    name: str
    depends_on: Mapping[str, object]  # what its numbers depend on, besides run, split and seed
    maker: BatchMaker
    chosen_N: np.ndarray  # the reviews
    measure: Callable[[Batch], MeasuredColumns]  # called with each batch


class Subject:
    """A finished run whose explanations are tested: its network, and the reviews that are used.

    folder: the folder of the measurements, named by the run and its checkpoint. Raises UserError if
    the run is not of a Classifier, if a part does not record its attention, or if its files or data
    are damaged or have changed.
    """

    def __init__(
        self,
        run: FinishedRun,
        out: Path,
        options: FaithfulnessSettings,
        custom: Mapping[str, CustomAttribution],
    ):
        if not run.is_classifier:
            raise UserError("an encoder-decoder, which has no label to explain")
        self.run = run
        self.options = options
        self.custom = custom
        opened = Run(run.folder, options.trust)
        checkpoint = opened.existing_checkpoint
        self.digest = sha256_of(checkpoint)[:8]  # digest of the weights
        self.folder = out / "runs" / f"{checkpoint.parents[1].name}-{self.digest}"
        settings = with_changes(settings_of(opened), options.data.model_dump())
        corpus = prepare_reviews(settings.data)  # type: ignore[arg-type]
        check_fingerprint(run.folder, options.split, corpus)
        self.fingerprint = corpus.fingerprints[options.split]
        self.texts = read_texts(corpus.texts_file(options.split))
        self.predictor = ReviewPredictor.load(settings, opened.read_net(), corpus.vectors)
        self.net = self.predictor.net.requires_grad_(False)
        if not isinstance(self.net, Classifier):
            raise UserError(
                f"its model is a {type(self.net).__name__}, not an imdbattn.nn.Classifier"
            )
        split = corpus.splits[options.split]
        self.maker = self.predictor.batch_maker_of_ids(split)
        shuffled_N = np.random.default_rng(options.seed).permutation(len(split))
        self.chosen_N = shuffled_N[: options.reviews]
        with wrapping_errors("this model cannot be explained"):
            attributions.observe(self.net, self.maker.of_items(self.chosen_N[:1]))
        is_probe = corpus.source_kind == "order_probe"
        words = corpus.vectors.words if is_probe else []
        # The reason for the label of a review of the order probe is known.
        self.negation = words.index("not") + FIRST_WORD if "not" in words else None
        self.pairs: list[EditedPair] = []
        if options.pairs_of and not is_probe:
            self.pairs = read_edited_pairs(expanded(options.pairs_of), run.labels, self.texts)

    @cached_property
    def measurements(self) -> list[Measurement]:
        """The measurements that apply to the run, in the order in which they are made."""
        options = self.options
        chosen = (*options.attributions, "random")
        names = [name for name in attributions.applicable(self.net) if name in chosen]
        limits = dict.fromkeys((*names, *self.custom), options.reviews)  # pairs have the same limit
        for name in limits.keys() & {*attributions.COSTLY, *self.custom}:
            limits[name] = min(options.costly_reviews, options.reviews)
        versions: dict[str, dict[str, object]] = {name: {} for name in limits}
        for setting in options.attributions:
            if not isinstance(setting, str):  # a user's function may change
                versions[setting.target] = {"code": code_version(setting, "attributions")}
        made: list[Measurement] = []
        for name, number in limits.items():
            about = {"shares": options.shares, **versions[name]}
            measure = partial(self.explained, name)
            made.append(Measurement(name, about, self.maker, self.chosen_N[:number], measure))
        shares, beam = options.shares, options.search.beam
        search = partial(erasure.extremes, self.net, shares=shares, beam=beam)
        searched_N = self.chosen_N[: options.search.reviews]
        about = {"shares": shares, "beam": beam}
        made.append(Measurement("extremes", about, self.maker, searched_N, search))
        for name in names:
            if name != "random":
                few_N = self.chosen_N[: options.random_reviews]
                measure = partial(self.correlated, name)
                made.append(Measurement(f"randomized-{name}", {}, self.maker, few_N, measure))
        if self.pairs:
            maker = self.predictor.batch_maker([pair.original for pair in self.pairs])
            every_N = np.arange(len(self.pairs))
            about = {"pairs": hexdigest({"pairs": self.pairs})}
            made.append(Measurement("pairs", about, maker, every_N, self.labeled_pairs))
            for name, number in limits.items():
                about_name = {**about, **versions[name]}
                measure = partial(self.found_edits, name)
                made.append(
                    Measurement(f"human-{name}", about_name, maker, every_N[:number], measure)
                )
        return [measurement for measurement in made if len(measurement.chosen_N)]

    def file(self, measurement: Measurement) -> Path:
        """Returns the file of a measurement, named by what its numbers depend on."""
        about = {"split": self.options.split, "seed": self.options.seed, **measurement.depends_on}
        digest = hexdigest({"version": VERSION, "reviews": len(measurement.chosen_N), **about})
        return self.folder / f"{measurement.name}-{digest}.parquet"

    def attribute(self, name: str, batch: Batch, texts: Sequence[str]) -> Tensor:
        """Returns the attributions of the words (B, T) for the predicted label.

        texts: the texts of all items, which a user's function reads.
        """
        if name not in self.custom:
            return attributions.ATTRIBUTIONS[name][1](
                self.net, batch, attributions.predicted_labels(self.net, batch)
            )
        read = []
        for item in batch.items_B.tolist():
            words = self.predictor.words_read(texts[item])
            read.append(" ".join(texts[item][word.start : word.end] for word in words))
        returned = self.custom[name](
            read, lambda several: self.predictor.classify(several)[0].numpy()
        )
        attributions_BT = torch.zeros(batch.tokens_BT.shape)
        lengths = batch.lengths_B.tolist()
        rows = zip(attributions_BT, read, returned, lengths, strict=True)
        for attributions_T, text, values, length in rows:
            if len(values) != length:
                raise UserError(
                    f"attributions: {name} returned {len(values)} numbers for {length} words:"
                    f" {text[:80]}"
                )
            attributions_T[:length] = torch.as_tensor(values)
        return attributions_BT

    def explained(self, name: str, batch: Batch) -> MeasuredColumns:
        """Returns the attributions, and their evaluation by erasure and known rationales."""
        attributions_BT = self.attribute(name, batch, self.texts)
        label_B = attributions.predicted_labels(self.net, batch)
        ranks_BT = erasure.ranks(attributions_BT, batch)
        comprehensiveness_BS, sufficiency_BS = erasure.erase(
            self.net, batch, ranks_BT, self.options.shares
        )
        columns: dict[str, Tensor | Sequence[object]] = {
            "right": label_B == batch.labels_B,
            "attributions": [
                column_T.tolist() for column_T in without_padding(attributions_BT, batch)
            ],
            "comprehensiveness": comprehensiveness_BS,
            "sufficiency": sufficiency_BS,
        }
        if self.negation is not None:
            true_BT = erasure.true_words(batch, self.negation)
            columns["auprc"] = erasure.average_precision(ranks_BT, true_BT)
        return columns

    @cached_property
    def randomized_nets(self) -> dict[str, Classifier]:
        return randomized_nets(self.net, self.options.seed)

    def correlated(self, name: str, batch: Batch) -> MeasuredColumns:
        """Returns the rank correlations of an attribution between the trained network and each
        randomized one, for the label that the trained network predicts.
        """
        label_B = attributions.predicted_labels(self.net, batch)
        attribute = attributions.ATTRIBUTIONS[name][1]
        trained = without_padding(attribute(self.net, batch, label_B), batch)
        columns = {}
        for stage, net in self.randomized_nets.items():
            randomized = without_padding(attribute(net, batch, label_B), batch)
            columns[stage] = list(map(spearman, trained, randomized))
        return columns

    @cached_property
    def edits(self) -> list[list[bool]]:
        """Whether each word that is read of the original was edited, for each pair."""
        words_of = self.predictor.tokenizer.words
        edits = []
        for pair in self.pairs:
            before = [word.text for word in words_of(pair.original)]
            after = [word.text for word in words_of(pair.edited)]
            changed = edited_words(before, after)
            read = kept_indices(len(changed), self.predictor.batch_options)
            edits.append([changed[index] for index in read])
        return edits

    def labeled_pairs(self, batch: Batch) -> MeasuredColumns:
        """Returns whether the labels of both texts are right, and the share of edited words."""
        items = batch.items_B.tolist()
        pairs = [self.pairs[item] for item in items]
        label_B = torch.tensor([pair.label for pair in pairs])
        edited_label_B = torch.tensor([pair.edited_label for pair in pairs])
        first_B = attributions.predicted_labels(self.net, batch) == label_B
        probability_BC, _ = self.predictor.classify([pair.edited for pair in pairs])
        second_B = probability_BC.argmax(1) == edited_label_B
        return {
            "original": first_B,
            "edited": second_B,
            "both": first_B & second_B,
            "share": [float(np.mean(self.edits[item])) for item in items],
        }

    def found_edits(self, name: str, batch: Batch) -> MeasuredColumns:
        """Returns how well an attribution finds the edited words of each pair."""
        true_BT = torch.zeros(batch.tokens_BT.shape, dtype=torch.bool)
        for true_T, item in zip(true_BT, batch.items_B.tolist(), strict=True):
            edited = self.edits[item]
            true_T[: len(edited)] = torch.tensor(edited, dtype=torch.bool)
        attributions_BT = self.attribute(name, batch, [pair.original for pair in self.pairs])
        precision_B = erasure.average_precision(erasure.ranks(attributions_BT, batch), true_BT)
        # A pair whose edits only add words has no edited word in the original.
        return {"human": precision_B.masked_fill(~true_BT.any(1), torch.nan)}

    def measure(self, measurement: Measurement, progress: Callable[[int], object]) -> None:
        """Writes the file of a measurement in the order of the reviews, unless it exists."""
        file = self.file(measurement)
        chosen_N = measurement.chosen_N
        maker = measurement.maker
        if file.exists():
            progress(len(chosen_N))
            return
        torch.manual_seed(
            zlib.crc32(f"{measurement.name} {self.options.seed} {self.digest}".encode())
        )
        measured: list[int] = []
        columns: dict[str, list[object]] = defaultdict(list)
        for _, indices in EvalPlans(maker.batch_lengths()[chosen_N], erasure.BUDGET):
            batch = maker.of_items(chosen_N[indices])
            measured += indices.tolist()
            columns["row"] += maker.split.rows[batch.items_B.numpy()].tolist()
            for name, values in measurement.measure(batch).items():
                columns[name] += values.tolist() if isinstance(values, Tensor) else values
            progress(len(indices))
        write_table(file, pd.DataFrame(columns).iloc[np.argsort(measured)])

    def tables(self) -> Tables:
        """Returns the tables of the measurements by their names."""
        return {item.name: pq.read_table(self.file(item)) for item in self.measurements}


def without_padding(column_BT: Tensor, batch: Batch) -> list[Tensor]:
    """Returns the entries of a column for the words of each review."""
    lengths = batch.lengths_B.tolist()
    return [column_T[:length] for column_T, length in zip(column_BT, lengths, strict=True)]


def spearman(first_T: Tensor, second_T: Tensor) -> float:
    """Returns the rank correlation; NaN for fewer than two words, or if all numbers are equal."""
    from scipy.stats import spearmanr

    with warnings.catch_warnings(action="ignore"):  # scipy warns of NaN
        return float(spearmanr(first_T, second_T).statistic)


def randomized_nets(net: Classifier, seed: int) -> dict[str, Classifier]:
    """Returns networks whose parts have random weights, from the output down to a part (Adebayo et
    al. 2018, section 4.1), by the name of that part.

    Random weights have the mean and the deviation of the trained weights. Word vectors and their
    trained offsets do not change.
    """
    parts: dict[str, tuple[str, ...]] = {"output": ("head.",), "pooling": ("pooling.",)}
    for number in range(len(net.layers), 0, -1):
        parts[f"layer {number}"] = (f"layers.{number - 1}.",)
    parts["input"] = ("context.", "positions.", "resize.")
    generator = torch.Generator().manual_seed(seed)
    networks = {}
    for name, starts in parts.items():
        net = copy.deepcopy(net, {id(net.embedding): net.embedding})
        weights = [
            weight
            for start in starts
            for weight_name, weight in net.named_parameters()
            if weight_name.startswith(start)
        ]
        for weight in weights:
            deviation = weight.std(correction=0).item()
            nn.init.normal_(weight, weight.mean().item(), deviation, generator)
        if weights:
            networks[name] = net
    return networks
