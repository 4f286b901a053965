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
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import imdbattn
from benchmarks import baselines
from benchmarks.common import table
from imdbattn.data.corpus import tokenizer_of
from imdbattn.errors import UserError
from imdbattn.folders.run_folder import SPLIT_FILES
from imdbattn.io.files import write_atomically
from imdbattn.report import statistics
from imdbattn.report.comparison import by_set, read_predictions
from imdbattn.report.comparison_figures import GREY, row_chart, with_title, wrapped
from imdbattn.report.finished_runs import FinishedRun, Skipped, SplitPredictions, find_runs
from imdbattn.report.numbers import interval_text, metric_text, percents
from imdbattn.report.pages import png
from imdbattn.report.variants import group_variants
from imdbattn.settings.schema import ReviewDataSettings, validate_as
from imdbattn.tasks.reviews.predictor import ReviewPredictor

CONTRAST = Path(__file__).with_name("contrast.tsv")
MARKER_SHAPES = "os^Dv<>P"
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
    small = set(re.findall(r"\b[a-z]\w*", text))
    names: set[str] = set()
    for match in NAMES.finditer(text):
        words = match[0].split()
        if len(words) > 1 or not starts_sentence(text, match.start()):
            names.update(word for word in words if word.lower() not in small)

    def it(run: re.Match[str]) -> str:
        if not starts_sentence(text, run.start()):
            return "it"
        first, *more = run[0].split()
        if first in names:
            return "It"
        return f"{first} it" if more else first

    return NAMES.sub(it, text)


def starts_sentence(text: str, start: int) -> bool:
    """Returns whether a sentence starts there. A single capital with a full stop is an initial and
    ends no sentence.
    """
    return STARTS_SENTENCE.search(text[max(0, start - 12) : start]) is not None if start else True


def pieces(text: str) -> list[str]:
    """Returns the text split at spaces and line breaks."""
    return LINE_BREAK.sub(" ", text).split()


def dice(text: str) -> random.Random:
    """Returns a generator seeded by the text, which may contain lone surrogates, which UTF-8 cannot
    encode.
    """
    return random.Random(text.encode("utf-8", "surrogatepass"))


def with_words_dropped(text: str) -> str:
    """Removes a random tenth of the words between spaces."""
    words = pieces(text)
    kept = dice(text).sample(range(len(words)), len(words) - round(0.1 * len(words)))
    return " ".join(words[index] for index in sorted(kept))


def shuffled(text: str) -> str:
    """Returns the words between spaces in random order; don't and "good." are one word each."""
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
        table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [Pair(**line) for line in table]


Answers = dict[str, tuple[int, float]]  # text -> predicted class, and its probability


class Judge(NamedTuple):
    """The answers of each seed of a model to the same texts. label: of the row."""

    label: str
    answers: list[Answers]

    def right_NS(self, texts: Sequence[str], labels_N: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns where each seed's answer is the label."""
        expected_N = np.asarray(labels_N)
        seeds = []
        for answers in self.answers:
            seeds.append(np.array([answers[text][0] for text in texts]) == expected_N)
        return np.stack(seeds, axis=1)


def answers_of(texts: Sequence[str], probabilities_NC: np.ndarray) -> Answers:
    """Returns the answers with these probabilities."""
    labels = probabilities_NC.argmax(1).tolist()
    answers = zip(labels, probabilities_NC.max(1).tolist(), strict=True)
    return dict(zip(texts, answers, strict=True))


def check_unchanged(
    run: FinishedRun, answers: Answers, texts: Sequence[str], recorded: SplitPredictions, split: str
) -> None:
    """Raises UserError if a run does not reproduce the predictions in its run folder."""
    label_N = np.array([answers[text][0] for text in texts])
    probability_N = np.array([answers[text][1] for text in texts])
    same_N = label_N == recorded.predicted_N
    recorded_N = np.where(same_N, recorded.confidence_N, 1 - recorded.confidence_N)
    if other := int((np.abs(recorded_N - probability_N) > TOLERANCE).sum()):
        raise UserError(
            f"{run.path} labels {other} of {len(texts)} {split} reviews differently from its"
            f" {SPLIT_FILES[split][0]}: its checkpoint is not the one that was scored. Copy the run"
            " folder again"
        )


def task_of(run: FinishedRun, split: str) -> baselines.Task:
    """Reads the corpus of a run, for a baseline. Raises UserError if its data have changed."""
    task = baselines.task_of(validate_as(ReviewDataSettings, run.settings["data"]))
    ours = task.corpus.fingerprints[split]
    theirs = run.fingerprint(split)
    if ours != theirs:
        raise UserError(f"{split} of {run.path} has fingerprint {theirs}, but its data now {ours}")
    return task


def answers_of_baseline(name: str, task: baselines.Task, texts: Sequence[str]) -> Answers:
    """Returns the answers of the fitted baseline with the best validation accuracy.

    The texts replace its test split.
    """
    words = baselines.words_of(texts, tokenizer_of(task.data.tokenizer, task.corpus.vectors.words))
    best, features = baselines.fit_best(name, task._replace(words=task.words | {"test": words}), 1)
    logits_NC = np.asarray(best.model.logits_NC(features["test"]))
    total_N1 = np.logaddexp.reduce(logits_NC, axis=1, keepdims=True)
    return answers_of(texts, np.exp(logits_NC - total_N1))


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
        """Returns where a judge is right after a change."""
        return judge.right_NS(self.texts[change], self.labels_N)

    def pairs_K2S(self, judge: Judge) -> np.ndarray:
        """Returns whether the positive and the negative text of each pair are labeled correctly."""
        count = len(self.pairs)
        positive_KS = judge.right_NS([pair.positive for pair in self.pairs], [1] * count)
        negative_KS = judge.right_NS([pair.negative for pair in self.pairs], [0] * count)
        return np.stack([positive_KS, negative_KS], axis=1)

    def kinds(self) -> dict[str, np.ndarray]:
        """Returns masks of the pairs: those of each kind, and all."""
        kinds = np.array([pair.kind for pair in self.pairs])
        masks = {kind: kinds == kind for kind in dict.fromkeys(kinds.tolist())}
        return masks | {"all": kinds != ""}


def classifiers(
    folders: Iterable[str | Path], split: str
) -> tuple[dict[FinishedRun, SplitPredictions], list[Skipped]]:
    """Returns predictions of the same reviews by the runs with a checkpoint, and the skipped runs.

    Raises UserError.
    """
    runs, skipped = find_runs(folders)
    for run in runs:
        if len(run.labels) != 2:
            raise UserError(f"{run.path} has {len(run.labels)} labels: give runs with two")
        if run.labels[0].lower().startswith("pos"):  # the pairs need the negative label first
            raise UserError(
                f"{run.path} has {run.labels[0]} first: train with data.label_names=[neg,pos]"
            )
    models = [run for run in runs if (run.folder / "checkpoints" / "best.ckpt").exists()]
    for run in runs:
        if run not in models:
            skipped.append({"folder": run.path, "reason": "no checkpoints/best.ckpt"})
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
    predictions, skipped = classifiers(folders, split)
    runs = list(predictions)
    recorded = predictions[runs[0]]
    everything = runs[0].texts(split, recorded.rows_N)
    count = len(everything)
    chosen_N = np.linspace(0, count - 1, min(limit or count, count)).round().astype(int)
    reviews = [everything[index] for index in chosen_N]
    texts = {name: list(map(change, reviews)) for name, change in CHANGES.items()}
    pairs = read_pairs()
    distinct = sorted(set().union(*texts.values(), *(pair[1:] for pair in pairs)))
    judges = []
    for variant in group_variants(runs):
        answers = []
        for run in variant.runs:
            predictor = imdbattn.load(run.folder).predictor
            assert isinstance(predictor, ReviewPredictor)  # of a classifier
            own = answers_of(distinct, predictor.classify(distinct)[0].numpy())
            check_unchanged(run, own, reviews, chosen(predictions[run], chosen_N), split)
            answers.append(own)
        judges.append(Judge(variant.label, answers))
    if baseline:
        answers_of_it = answers_of_baseline(baseline, task_of(runs[0], split), distinct)
        judges.append(Judge(baseline, [answers_of_it]))
    test_set = runs[0].metrics["test_set"]
    labels_N = recorded.labels_N[chosen_N]
    return Results(test_set, split, judges, texts, labels_N, pairs, skipped)


def chosen(predictions: SplitPredictions, chosen_N: np.ndarray) -> SplitPredictions:
    """Returns the predictions of the chosen reviews."""
    columns = {}
    for name, column in vars(predictions).items():
        if column is not None:
            columns[name] = column[chosen_N]
    return SplitPredictions(**columns)


def row_name(judge: Judge) -> str:
    """Returns the label of a judge, and its number of seeds if it has several."""
    seeds = len(judge.answers)
    return f"`{judge.label}`" + f" ({seeds} seeds)" * (seeds > 1)


def of_changes(results: Results) -> str:
    """Returns the accuracy after each change, and its difference from the unchanged reviews with an
    interval, in points.
    """
    before = np.array(results.texts[AS_IT_IS], dtype=object)
    shares = (
        np.mean(np.array(results.texts[change], dtype=object) != before) for change in CHANGES
    )
    lines = [["*reviews that it changes*", *(f"{100 * share:.0f}" for share in shares)]]
    for judge in results.judges:
        before_NS, *after = (results.right_NS(judge, change).astype(float) for change in CHANGES)
        cells = [row_name(judge), f"{100 * before_NS.mean():.1f}"]
        for right_NS in after:
            gain_NS = right_NS - before_NS
            gain = metric_text(gain_NS.mean(), "accuracy", sign=True)
            interval = statistics.estimate_mean(gain_NS).interval or (0.0, 0.0)
            difference = f"{gain} ({interval_text(interval, 'accuracy', sign=True)})"
            cells.append(f"{100 * right_NS.mean():.1f}, {difference}")
        lines.append(cells)
    return table(["model", *CHANGES], lines)


def of_lengths(results: Results) -> str:
    """Returns the accuracy on the unchanged reviews, in five equal parts by length."""
    lengths_N = np.array([len(text.split()) for text in results.texts[AS_IT_IS]])
    masks = statistics.length_slices(lengths_N, "words")
    lines = []
    for judge in results.judges:
        right_NS = results.right_NS(judge, AS_IT_IS)
        cells = [f"{100 * right_NS[mask].mean():.1f}" for mask in masks.values()]
        lines.append([row_name(judge), *cells])
    return table(["model", *(f"{name} ({mask.sum():,})" for name, mask in masks.items())], lines)


def of_pairs(results: Results) -> str:
    """Returns the share of texts labeled correctly, and of pairs with both labeled correctly."""
    masks = results.kinds()
    lines = []
    for judge in results.judges:
        right_K2S = results.pairs_K2S(judge)
        cells = []
        for mask in masks.values():
            of_kind = right_K2S[mask]
            cells.append(f"{100 * of_kind.mean():.0f} / {100 * of_kind.all(1).mean():.0f}")
        lines.append([row_name(judge), *cells])
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


def picture(results: Results) -> Figure:
    """Draws a row per change and model: the accuracy, and a line from the accuracy on the unchanged
    reviews.
    """
    import matplotlib

    count = len(results.judges)
    changes = list(CHANGES)
    styles = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, count))
    figure, axes = row_chart(changes, extra=0.9 + 0.25 * count + 0.14 * count * len(changes))
    for number, judge in enumerate(results.judges):
        accuracies = percents(float(results.right_NS(judge, change).mean()) for change in changes)
        rows = np.arange(len(changes)) + 0.7 * ((number + 0.5) / count - 0.5)
        label = row_name(judge).replace("`", "")
        axes.hlines(rows, accuracies[0], accuracies, color=styles[number], lw=1.2, alpha=0.5)
        marker = MARKER_SHAPES[number % len(MARKER_SHAPES)]
        axes.plot(accuracies, rows, marker, color=styles[number], ms=4.5, label=wrapped(label, 40))
    axes.plot([], [], color=GREY, lw=1.2, alpha=0.5, label="from the unchanged reviews")
    axes.set_ylim(len(changes) - 0.5, -0.5)
    for row in range(1, len(changes)):
        axes.axhline(row - 0.5, color="black", lw=0.4, alpha=0.3)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"{results.split} accuracy (%)", fontsize=9)
    return with_title(figure, "Accuracy on changed reviews", legend=2)


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
    results = measure(options.runs, options.split, options.limit, options.baseline)
    for skipped in results.skipped:
        print(f"skipped: {skipped['folder']} ({skipped['reason']})", file=sys.stderr)
    print(markdown(results), end="")
    if options.out:
        write_atomically(options.out / "robustness.md", markdown(results))
        write_atomically(options.out / "robustness.png", png(picture(results)))


if __name__ == "__main__":
    main()
