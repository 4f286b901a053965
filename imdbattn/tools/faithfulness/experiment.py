"""Measures finished runs. Each measurement is a file, so a stopped command can be continued.

Shape suffixes: B reviews of a batch, N reviews, T positions, S shares of the words.
"""

import copy
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn
from tqdm import tqdm

from imdbattn.data.corpus import read_texts
from imdbattn.data.plans import eval_plans
from imdbattn.data.ragged import Batch, BatchMaker
from imdbattn.data.tokenizer import FIRST_WORD
from imdbattn.errors import UserError, wrapping_errors
from imdbattn.io.files import sha256_of, with_home, write_table, writing_into
from imdbattn.nn.ladder import Classifier
from imdbattn.report.finished_runs import FinishedRun, as_skipped, find_runs, grouped
from imdbattn.runs.apply import predictor_of_run
from imdbattn.runs.evaluate import check_fingerprint
from imdbattn.settings.code_version import code_version
from imdbattn.settings.command_settings import FaithfulnessSettings
from imdbattn.settings.keys import hexdigest
from imdbattn.settings.objects import import_object
from imdbattn.settings.schema import ClassSettings
from imdbattn.tasks.reviews.predictor import ReviewPredictor
from imdbattn.tools.faithfulness import attributions, erasure
from imdbattn.tools.faithfulness.edited_pairs import ReadPairs, read_edited_pairs
from imdbattn.tools.faithfulness.summary import Summary, Tables, summarize

VERSION = 7  # version of the measurements; increment it when they change

# name -> an element for each review of a batch
MeasuredColumns = Mapping[str, Tensor | Sequence[object]]


def run_experiment(
    folders: Sequence[str], out: Path, options: FaithfulnessSettings
) -> list[Summary]:
    """Measures the classifiers in `folders`. Returns a summary for each set of reviews.

    Raises UserError if there is none, or if `out` cannot be written.
    """
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
    steps = [(subject, measurement) for subject in subjects for measurement in subject.measurements]
    total = sum(len(measurement.chosen_N) for _, measurement in steps)
    bar = tqdm(total=total, unit=" reviews", dynamic_ncols=True, smoothing=0)
    with writing_into(out), bar, torch.no_grad():
        for subject, measurement in steps:
            title = f"{subject.run.model} seed {subject.run.metrics['seed']}"
            bar.set_description(f"{title}, {measurement.name}", refresh=False)
            subject.measure(measurement, bar.update)
    summaries = []
    for group in grouped(subjects, lambda subject: subject.fingerprint):
        measured = [(subject.run, subject.tables()) for subject in group]
        summaries.append(summarize(measured, group[0].fingerprint, options, skipped))
    return summaries


class CustomAttribution:
    """A user's function: texts -> an attribution for each word of each text.

    Raises UserError if it cannot be imported.
    """

    def __init__(self, setting: ClassSettings):
        self.name = setting.target
        function = import_object(setting.target, "attributions._target_")
        self.function = partial(function, **(setting.model_extra or {}))
        self.version = code_version(setting, "attributions")

    def attribute(self, predictor: ReviewPredictor, batch: Batch, texts: Sequence[str]) -> Tensor:
        """Returns the attributions of the words (B, T). texts: the texts of all items.

        Raises UserError unless there is one for each word.
        """
        read = []
        for item in batch.items_B.tolist():
            words = predictor.words_read(texts[item])
            read.append(" ".join(texts[item][word.start : word.end] for word in words))
        returned = self.function(read, lambda several: predictor.classify(several)[0].numpy())
        attributions_BT = torch.zeros(batch.tokens_BT.shape)
        lengths = batch.lengths_B.tolist()
        rows = zip(attributions_BT, read, returned, lengths, strict=True)
        for attributions_T, text, values, length in rows:
            if len(values) != length:
                raise UserError(
                    f"attributions: {self.name} returned {len(values)} numbers for {length} words:"
                    f" {text[:80]}"
                )
            attributions_T[:length] = torch.as_tensor(values)
        return attributions_BT


def custom_attributions(options: FaithfulnessSettings) -> dict[str, CustomAttribution]:
    """Returns the user's functions among the attributions, by their `_target_`.

    Raises UserError for an unknown name, a function that is named twice, because its results have
    its name, and one that cannot be imported.
    """
    custom: dict[str, CustomAttribution] = {}
    for attribution in options.attributions:
        if not isinstance(attribution, str):
            if attribution.target in custom:
                raise UserError(f"attributions: {attribution.target} is named twice: use two names")
            custom[attribution.target] = CustomAttribution(attribution)
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
        self.run = run
        self.options = options
        self.custom = custom
        self.digest = sha256_of(run.opened.existing_checkpoint)[:8]  # digest of the weights
        self.folder = out / "runs" / f"{run.folder.name}-{self.digest}"
        self.predictor = predictor_of_run(run.folder, options)
        self.net = self.predictor.net.requires_grad_(False)
        if not isinstance(self.net, Classifier):
            raise UserError(f"{type(self.net).__name__} is not an imdbattn.nn.Classifier")
        corpus = self.predictor.corpus(self.predictor.settings.data)
        check_fingerprint(run.folder, options.split, corpus)
        self.fingerprint = corpus.fingerprints[options.split]
        self.texts = read_texts(corpus.texts_file(options.split))
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
        self.pairs: ReadPairs | None = None
        if options.pairs_of and not is_probe:
            pairs = read_edited_pairs(with_home(options.pairs_of), run.labels, self.texts)
            self.pairs = ReadPairs(pairs, self.predictor)

    @cached_property
    def measurements(self) -> list[Measurement]:
        """The measurements that apply to the run, in the order in which they are made."""
        return [measurement for measurement in self.planned() if len(measurement.chosen_N)]

    def planned(self) -> Iterator[Measurement]:
        """Yields the measurements; those of no reviews, too."""
        options, maker, chosen_N = self.options, self.maker, self.chosen_N
        chosen = (*options.attributions, "random")
        names = [name for name in attributions.applicable(self.net) if name in chosen]
        few = min(options.costly_reviews, options.reviews)
        costly = {*attributions.COSTLY, *self.custom}
        limits = {}  # the number of reviews, and of pairs
        for name in (*names, *self.custom):
            limits[name] = few if name in costly else options.reviews
        versions = {name: {"code": custom.version} for name, custom in self.custom.items()}
        for name, number in limits.items():
            about: dict[str, object] = {"shares": options.shares, **versions.get(name, {})}
            measure = partial(self.explained, name)
            yield Measurement(name, about, maker, chosen_N[:number], measure)
        shares, beam = options.shares, options.search.beam
        search = partial(erasure.extremes, self.net, shares=shares, beam=beam)
        about = {"shares": shares, "beam": beam}
        yield Measurement("extremes", about, maker, chosen_N[: options.search.reviews], search)
        few_N = chosen_N[: options.random_reviews]
        for name in names:
            if name != "random":
                measure = partial(self.correlated, name)
                yield Measurement(f"randomized-{name}", {}, maker, few_N, measure)
        if self.pairs is not None:
            maker = self.pairs.maker
            every_N = np.arange(len(self.pairs.pairs))
            about = {"pairs": hexdigest({"pairs": self.pairs.pairs})}
            yield Measurement("pairs", about, maker, every_N, self.pairs.labels)
            for name, number in limits.items():
                its_about = {**about, **versions.get(name, {})}
                measure = partial(self.found_edits, name)
                yield Measurement(f"human-{name}", its_about, maker, every_N[:number], measure)

    def file(self, measurement: Measurement) -> Path:
        """Returns the file of a measurement, named by what its numbers depend on."""
        about = {"split": self.options.split, "seed": self.options.seed, **measurement.depends_on}
        digest = hexdigest({"version": VERSION, "reviews": len(measurement.chosen_N), **about})
        return self.folder / f"{measurement.name}-{digest}.parquet"

    def attribute(self, name: str, batch: Batch, texts: Sequence[str]) -> Tensor:
        """Returns the attributions of the words (B, T) for the predicted label.

        texts: the texts of all items, which a user's function reads.
        """
        if name in self.custom:
            return self.custom[name].attribute(self.predictor, batch, texts)
        label_B = attributions.predicted_labels(self.net, batch)
        return attributions.ATTRIBUTIONS[name][1](self.net, batch, label_B)

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

    def found_edits(self, name: str, batch: Batch) -> MeasuredColumns:
        """Returns how well an attribution finds the edited words of each pair."""
        assert self.pairs is not None
        attributions_BT = self.attribute(name, batch, self.pairs.originals)
        return {"human": self.pairs.precision(attributions_BT, batch)}

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
        for _, indices in eval_plans(maker.batch_lengths()[chosen_N], erasure.BUDGET):
            batch = maker.of_items(chosen_N[indices])
            measured += indices.tolist()
            columns["row"] += maker.items.rows[batch.items_B.numpy()].tolist()
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
