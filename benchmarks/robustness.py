"""How much of a model's accuracy depends on ratings, digits, names, single words, and the order of
words.

    python -m benchmarks.robustness runs/residual_pe runs/log_counts --baseline nb_svm \
        --out runs/robustness

Each finished classifier labels the reviews of a split after each of CHANGES, and the pairs of
benchmarks/contrast.tsv, in which a small edit turns a positive text into a negative one. Runs that
differ only in their seed share a row.

Shape suffixes: N reviews, K pairs, S seeds, V changes, C classes.
"""

import argparse
import csv
import random
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from omegaconf import OmegaConf

import imdbattn
from benchmarks import baselines
from benchmarks.common import table
from imdbattn.data.tokens import Tokenizer
from imdbattn.errors import UserError
from imdbattn.io.files import write_atomically
from imdbattn.report import statistics
from imdbattn.report.comparison import by_set, read_predictions
from imdbattn.report.comparison_figures import (
    GREY,
    MARKERS,
    finish,
    percents,
    row_chart,
    signed,
    wrapped,
)
from imdbattn.report.finished_runs import (
    REVIEWS,
    FinishedRun,
    Skipped,
    SplitPredictions,
    find_runs,
    variants,
)
from imdbattn.report.pages import png
from imdbattn.runs.run_folder import SPLIT_FILES

CONTRAST = Path(__file__).with_name("contrast.tsv")
TOLERANCE = 0.02  # of a probability; a GPU's bfloat16 differs less than that from a CPU

DIGIT = r"\d+(?:[.,]\d+)?(?:[ -]1/2|½)?"
NUMBER = rf"(?:{DIGIT}|(?:zero|one|two|three|four|five|six|seven|eight|nine|ten)(?: and a half)?)"
FRESH = r"(?<![\w*/$])(?<!\d[.,])"  # not inside a number, date or word
WHOLE = r"(?![\w/%]|[.,:]\d)"  # the number, date or word ends here
# 3/4 of the film is not a rating
BEST = r"(?:(?:5|10|20|100|five|ten)(?:\.0)?|(?:4|four)(?! of\b)|\*{3,})"
POINTS = r"(?:[ -]?(?:stars?|points?))?"
BEFORE = (
    r"(?P<before>\b(?:rat(?:e|ed|ing)|graded?|scored?|g[ai]ve|giving)\b"
    r"(?: (?:it|this|of|is|was|the|film|movie|an?)\b)* ?[:=]? *)"
)
# words after a number that is not a count
THEN = "because|for|and|but|only|just|instead|if|since|as|when|rather|or"
RATINGS = (
    # 8 out of 10
    rf"{FRESH}(?:{NUMBER}|\*+(?: ?1/2|½)?){POINTS} ?(?:out of|/) ?(?:an? )?{BEST}{WHOLE}{POINTS}",
    rf"{FRESH}(?:{NUMBER}|no|half a)[ -]*(?:stars?\b|\*+)",  # 7.5 stars, three stars
    rf"(?:{FRESH}{NUMBER} )?\bthumbs?[ -](?:up|down)\b",
    r"(?<![\w*])(?:\*{2,6}(?: ?1/2|½)?|\*(?: ?1/2|½))(?![\w*])",  # ***1/2
    r"(?<![\w+-])(?-i:[A-DF])[+-](?![\w+-])",  # A+
    # give it a 9
    rf"""{BEFORE}["“]?(?:{NUMBER}{WHOLE}(?= *(?:[^\s\w/]|$|(?:{THEN})\b))"""
    r"""|(?-i:[A-F][+-]?)(?![\w']))""",
)
RATING = re.compile("|".join(RATINGS), re.IGNORECASE)
DIGITS = re.compile(r"(?<![\w'-])[\w'-]*\d(?:[\w'/:-]|[.,](?=\d))*")
SMALL = r"[^\W\d_A-Z]"
NAME_WORD = (
    rf"(?<![\w'’.-])(?:(?:Mr|Mrs|Ms|Dr)\. +)?(?:[A-Z]['’])?[A-Z]{SMALL}[^\W\d_]*(?:-[^\W\d_]+)*"
)
NAMES = re.compile(rf"{NAME_WORD}(?: +{NAME_WORD})*")
QUOTED = re.compile(
    """(?<!\\w)(?:"[A-Z0-9][^"“”<>\n]{0,60}"|“[A-Z0-9][^"“”<>\n]{0,60}”|'[A-Z0-9][^'"<>\n]{1,60}'(?!\\w))"""
)
STARTS_SENTENCE = re.compile(r"""(?:^|(?<!\b[A-Z])[.!?:…]|[>*•-])["'“”‘’()\[\s]*$""")
LINE_BREAK = re.compile(r"<\s*/?\s*br\s*/?\s*>", re.IGNORECASE)


def without_ratings(text: str) -> str:
    """Removes 10/10, 4 / 10, 8 out of 10, 7.5 stars, three stars, ** out of ****, A+, thumbs up, I
    give it a [9].

    Keeps fractions of 4 before "of", and dates. Also removes "three stars" if these are people.
    """
    return RATING.sub(lambda match: f"{match['before'] or ''} ", text)


def without_digits(text: str) -> str:
    """Removes every word with a digit; a number such as 1,000.5 or 10/10 is one word."""
    return DIGITS.sub(" ", text)


def without_names(text: str) -> str:
    """Replaces each quoted title, and each sequence of capitalized words, by a single "it".

    A title is a quotation of at most 60 characters that starts with a capital or a digit. A
    capitalized word has a capital followed by a lower-case letter. At the start of a sentence
    (after . ! ? : … or a line break) it is replaced only if it is also replaced elsewhere or
    another capitalized word follows, and if the review does not have it in lower case. This
    includes Hollywood, English, Monday, and Words Stressed Like This.
    """
    text = QUOTED.sub("it", text)
    runs = [(run[0].split(), starts_sentence(text, run.start())) for run in NAMES.finditer(text)]
    small = set(re.findall(r"\b[a-z]\w*", text))
    names = {
        word
        for run, starts in runs
        if not starts or len(run) > 1
        for word in run
        if word.lower() not in small
    }

    def it(run: re.Match[str]) -> str:
        if not starts_sentence(text, run.start()):
            return "it"
        first, *more = run[0].split()
        if first in names:
            return "It"
        return f"{first} it" if more else first

    return NAMES.sub(it, text)


def starts_sentence(text: str, place: int) -> bool:
    """Whether a sentence starts there. A single capital with a full stop is an initial and ends no
    sentence.
    """
    return STARTS_SENTENCE.search(text[max(0, place - 12) : place]) is not None if place else True


def pieces(text: str) -> list[str]:
    """The text split at spaces and line breaks."""
    return LINE_BREAK.sub(" ", text).split()


def dice(text: str) -> random.Random:
    """A generator seeded by the text, which may contain lone surrogates, which UTF-8 cannot
    encode.
    """
    return random.Random(text.encode("utf-8", "surrogatepass"))


def with_words_dropped(text: str) -> str:
    """Removes a random tenth of the words between spaces."""
    words = pieces(text)
    kept = dice(text).sample(range(len(words)), len(words) - round(0.1 * len(words)))
    return " ".join(words[place] for place in sorted(kept))


def shuffled(text: str) -> str:
    """The words between spaces in random order; don't and "good." are one word each."""
    words = pieces(text)
    dice(text).shuffle(words)
    return " ".join(words)


CHANGES: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "ratings": without_ratings,
    "digits": without_digits,
    "names": without_names,
    "names and digits": lambda text: without_digits(without_names(text)),
    "10% dropped": with_words_dropped,
    "shuffled": shuffled,
}
AS_IT_IS = next(iter(CHANGES))


class Pair(NamedTuple):
    """Two texts that differ by a small edit, and the kind of the edit."""

    kind: str
    positive: str
    negative: str


def read_pairs() -> list[Pair]:
    with CONTRAST.open(encoding="utf-8", newline="") as lines:
        return [
            Pair(**line) for line in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


Answers = dict[str, tuple[int, float]]  # text -> predicted class, and its probability


class Judge(NamedTuple):
    """The answers of each seed of a model to the same texts. label: of the row."""

    label: str
    answers: list[Answers]

    def right_NS(self, texts: Sequence[str], labels_N: Sequence[int] | np.ndarray) -> np.ndarray:
        pairs = list(zip(texts, labels_N, strict=True))
        return np.array(
            [[answers[text][0] == label for answers in self.answers] for text, label in pairs],
            dtype=bool,
        )


def answers_of(texts: Sequence[str], probabilities_NC: np.ndarray) -> Answers:
    answers = zip(
        probabilities_NC.argmax(1).tolist(), probabilities_NC.max(1).tolist(), strict=True
    )
    return dict(zip(texts, answers, strict=True))


def check_unchanged(
    run: FinishedRun, answers: Answers, texts: Sequence[str], recorded: SplitPredictions, split: str
) -> None:
    """Raises UserError if a run does not reproduce the predictions in its run folder."""
    label_N, probability_N = (
        np.array(values) for values in zip(*(answers[text] for text in texts), strict=True)
    )
    recorded_N = np.where(
        label_N == recorded.predicted_N, recorded.confidence_N, 1 - recorded.confidence_N
    )
    if other := int((np.abs(recorded_N - probability_N) > TOLERANCE).sum()):
        raise UserError(
            f"{run.place} labels {other} of {len(texts)} {split} reviews differently from its"
            f" {SPLIT_FILES[split][0]}: its checkpoint is not the one that was scored. Copy the run"
            " folder again"
        )


def task_of(run: FinishedRun, split: str) -> baselines.Task:
    """The corpus of a run, for a baseline. Raises UserError if its data have changed."""
    task = baselines.task_of(OmegaConf.create(run.settings["data"]))
    ours, theirs = task.corpus.fingerprints[split], run.fingerprint(split)
    if ours != theirs:
        raise UserError(f"{split} of {run.place} has fingerprint {theirs}, but its data now {ours}")
    return task


def answers_of_baseline(name: str, task: baselines.Task, texts: Sequence[str]) -> Answers:
    """The answers of the fitted baseline with the best validation accuracy. The texts replace its
    test split.
    """
    words = baselines.words_of(texts, Tokenizer(task.data.tokenizer, task.corpus.glove.words))
    best, features = baselines.fit_best(name, task._replace(words=task.words | {"test": words}), 1)
    logits_NC = np.asarray(best.model.logits_NC(features["test"]))
    return answers_of(
        texts, np.exp(logits_NC - np.logaddexp.reduce(logits_NC, axis=1, keepdims=True))
    )


class Results(NamedTuple):
    """The answers of all judges to the changed reviews and the pairs."""

    test_set: str
    split: str
    judges: list[Judge]
    texts: dict[str, list[str]]  # of each change, N
    labels_N: np.ndarray
    pairs: list[Pair]
    skipped: list[Skipped]

    def right_NS(self, judge: Judge, change: str) -> np.ndarray:
        return judge.right_NS(self.texts[change], self.labels_N)

    def pairs_K2S(self, judge: Judge) -> np.ndarray:
        """Whether the positive and the negative text of each pair are labeled correctly."""
        sides = [
            ([pair[side] for pair in self.pairs], [label] * len(self.pairs))
            for side, label in ((1, 1), (2, 0))
        ]
        return np.stack([judge.right_NS(*side) for side in sides], axis=1)

    def kinds(self) -> dict[str, np.ndarray]:
        """Masks of the pairs: those of each kind, and all."""
        kinds = np.array([pair.kind for pair in self.pairs])
        return {kind: kinds == kind for kind in dict.fromkeys(kinds.tolist())} | {
            "all": kinds != ""
        }


def classifiers(
    folders: Iterable[str | Path], split: str
) -> tuple[dict[FinishedRun, SplitPredictions], list[Skipped]]:
    """Returns predictions of the same reviews by the runs with a checkpoint, and the skipped runs.

    Raises UserError.
    """
    runs, skipped = find_runs(folders)
    for run in runs:
        if run.items != REVIEWS or len(run.labels) != 2:
            raise UserError(f"{run.place} has {len(run.labels)} labels: give runs with two")
        if run.labels[0].lower().startswith("pos"):  # the pairs need the negative label first
            raise UserError(
                f"{run.place} has {run.labels[0]} first: train with data.label_names=[neg,pos]"
            )
    models = [run for run in runs if (run.folder / "checkpoints" / "best.ckpt").exists()]
    skipped += [
        {"folder": r.place, "reason": "no checkpoints/best.ckpt"} for r in runs if r not in models
    ]
    if not models:
        raise UserError(f"no run has a model: {skipped[-1]['folder']}: {skipped[-1]['reason']}")
    if len(by_set(models, split)) > 1:
        raise UserError(f"these runs were scored on different {split} sets: give those of one set")
    predictions, more = read_predictions(models, split)
    if not predictions:
        raise UserError(f"no run has readable {split} predictions: {more[0]['reason']}")
    return predictions, [*skipped, *more]


def measure(
    folders: Iterable[str | Path], split: str, limit: int | None = None, baseline: str | None = None
) -> Results:
    """Labels the reviews of a split, or `limit` evenly spaced ones, after each change, and the
    pairs.
    """
    if limit is not None and limit < 1:
        raise UserError(f"--limit {limit} must be at least 1")
    predictions, skipped = classifiers(folders, split)
    runs = list(predictions)
    recorded = predictions[runs[0]]
    everything = runs[0].texts(split, recorded.rows_N)
    count = len(everything)
    chosen_N = np.linspace(0, count - 1, min(limit or count, count)).round().astype(int)
    reviews = [everything[place] for place in chosen_N]
    texts = {name: [change(text) for text in reviews] for name, change in CHANGES.items()}
    pairs = read_pairs()
    distinct = sorted(
        {text for some in (*texts.values(), *(pair[1:] for pair in pairs)) for text in some}
    )
    judges = []
    for variant in variants(runs):
        answers = []
        for run in variant.runs:
            answers.append(
                answers_of(distinct, imdbattn.load(run.folder).predictor.classify(distinct).numpy())
            )
            columns = {
                name: v[chosen_N] for name, v in vars(predictions[run]).items() if v is not None
            }
            check_unchanged(run, answers[-1], reviews, SplitPredictions(**columns), split)
        judges.append(Judge(variant.label, answers))
    if baseline:
        judges.append(
            Judge(baseline, [answers_of_baseline(baseline, task_of(runs[0], split), distinct)])
        )
    return Results(
        runs[0].metrics["test_set"],
        split,
        judges,
        texts,
        recorded.labels_N[chosen_N],
        pairs,
        skipped,
    )


def paired_intervals(gains_VNS: np.ndarray) -> list[tuple[float, float]]:
    """Returns the intervals of V mean gains, over reviews and seeds."""
    return [statistics.mean_of(gain_NS).interval or (0.0, 0.0) for gain_NS in gains_VNS]


def row_name(judge: Judge) -> str:
    return f"`{judge.label}`" + (f" ({len(judge.answers)} seeds)" if len(judge.answers) > 1 else "")


def of_changes(results: Results) -> str:
    """Accuracy after each change, and its difference from the unchanged reviews with an interval,
    in points.
    """
    before = np.array(results.texts[AS_IT_IS], dtype=object)
    shares = (
        np.mean(np.array(results.texts[change], dtype=object) != before) for change in CHANGES
    )
    lines = [["*reviews that it changes*", *(f"{100 * share:.0f}" for share in shares)]]
    for judge in results.judges:
        before_NS, *after = (results.right_NS(judge, change).astype(float) for change in CHANGES)
        gains_VNS = np.stack([right_NS - before_NS for right_NS in after])
        cells = [row_name(judge), f"{100 * before_NS.mean():.1f}"]
        for right_NS, gain_NS, (low, high) in zip(
            after, gains_VNS, paired_intervals(gains_VNS), strict=True
        ):
            difference = f"{signed(gain_NS.mean())} ({signed(low)} to {signed(high)})"
            cells.append(f"{100 * right_NS.mean():.1f}, {difference}")
        lines.append(cells)
    return table(["model", *CHANGES], lines)


def of_lengths(results: Results) -> str:
    """Accuracy on the unchanged reviews, in five equal parts by length."""
    lengths_N = np.array([len(text.split()) for text in results.texts[AS_IT_IS]])
    masks, lines = statistics.length_slices(lengths_N, "words"), []
    for judge in results.judges:
        right_NS = results.right_NS(judge, AS_IT_IS)
        lines.append(
            [row_name(judge), *(f"{100 * right_NS[mask].mean():.1f}" for mask in masks.values())]
        )
    return table(["model", *(f"{name} ({mask.sum():,})" for name, mask in masks.items())], lines)


def of_pairs(results: Results) -> str:
    """Share of texts labeled correctly, and of pairs with both labeled correctly."""
    masks, lines = results.kinds(), []
    for judge in results.judges:
        parts = [results.pairs_K2S(judge)[mask] for mask in masks.values()]
        lines.append(
            [
                row_name(judge),
                *(f"{100 * one.mean():.0f} / {100 * one.all(1).mean():.0f}" for one in parts),
            ]
        )
    return table(["model", *(f"{kind} ({mask.sum()})" for kind, mask in masks.items())], lines)


def markdown(results: Results) -> str:
    return (
        f"Accuracy (%) on {len(results.labels_N):,} {results.split} reviews of {results.test_set},"
        " unchanged and after each change, with the difference in points and its paired"
        f" {100 * statistics.LEVEL:g} % interval.\nRemoved: ratings such as 10/10 or three stars;"
        ' words with a digit; names and quoted titles, each of which becomes "it"; 10 % of the'
        f" words. Shuffled: all words in random order.\n\n{of_changes(results)}\nAccuracy (%) on"
        f" unchanged reviews by length (reviews):\n\n{of_lengths(results)}\nContrast pairs: right"
        " texts / pairs with both right (%), by the kind of the edit"
        f" (pairs):\n\n{of_pairs(results)}"
    )


def picture(results: Results) -> Any:
    """A row per change and model: the accuracy, and a line from the accuracy on the unchanged
    reviews.
    """
    import matplotlib

    count, changes = len(results.judges), list(CHANGES)
    styles = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, count))
    figure, axes = row_chart(changes, extra=0.9 + 0.25 * count + 0.14 * count * len(changes))
    for number, judge in enumerate(results.judges):
        accuracies = percents(float(results.right_NS(judge, change).mean()) for change in changes)
        rows, label = (
            np.arange(len(changes)) + 0.7 * ((number + 0.5) / count - 0.5),
            row_name(judge).replace("`", ""),
        )
        axes.hlines(rows, accuracies[0], accuracies, color=styles[number], lw=1.2, alpha=0.5)
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(accuracies, rows, marker, color=styles[number], ms=4.5, label=wrapped(label, 40))
    axes.plot([], [], color=GREY, lw=1.2, alpha=0.5, label="from the unchanged reviews")
    axes.set_ylim(len(changes) - 0.5, -0.5)
    for place in range(1, len(changes)):
        axes.axhline(place - 0.5, color="black", lw=0.4, alpha=0.3)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"{results.split} accuracy (%)", fontsize=9)
    return finish(figure, "Accuracy on changed reviews", legend=2)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, help="run folders, or folders that contain some at any depth"
    )
    parser.add_argument(
        "--baseline",
        choices=("nb_svm", "tfidf"),
        help="is fitted on the first run's training reviews",
    )
    parser.add_argument("--split", choices=SPLIT_FILES, default="test")
    parser.add_argument("--limit", type=int, help="number of reviews, evenly spaced over the split")
    parser.add_argument("--out", type=Path, help="folder for robustness.md and robustness.png")
    options = parser.parse_args(arguments)
    with baselines.one_line_errors(OSError):
        results = measure(options.runs, options.split, options.limit, options.baseline)
        for one in results.skipped:
            print(f"skipped: {one['folder']} ({one['reason']})", file=sys.stderr)
        print(markdown(results), end="")
        if options.out:
            write_atomically(options.out / "robustness.md", markdown(results))
            write_atomically(options.out / "robustness.png", png(picture(results)))


if __name__ == "__main__":
    main()
