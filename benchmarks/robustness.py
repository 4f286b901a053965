"""How much of a model's accuracy rests on what it should not rest on: ratings, digits, names, each word, their order.

    python -m benchmarks.robustness runs/residual_pe runs/log_counts --baseline nb_svm --out runs/robustness

Each finished classifier labels the reviews of a split again after each of CHANGES was made to them, and the pairs of
benchmarks/contrast.tsv, in which a small edit turns praise into blame. Runs that differ in their seed alone are one
row. A text that a change leaves as it was is labelled once.

Shape suffixes: N reviews, K pairs, S seeds, V changes, B resamples.
"""

import argparse
import csv
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks import baselines
from imdbattn.comparison import statistics
from imdbattn.comparison.compare import LEVEL, by_set, read_predictions
from imdbattn.comparison.figures import COLORS, GREY, MARKERS, finish, percents, png, row_chart, signed, wrapped
from imdbattn.comparison.runs import REVIEWS, Predictions, Run, Skipped, display, find_runs, variants
from imdbattn.data.tokens import Tokenizer
from imdbattn.errors import UserError
from imdbattn.files import write_atomically
from imdbattn.run_folder import FINGERPRINT, SPLIT_FILES
from imdbattn.runs.score import load_reader
from imdbattn.settings.keys import flat
from imdbattn.tasks.reader import Reader

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONTRAST = Path(__file__).with_name("contrast.tsv")
BASELINES = ("nb_svm", "tfidf")  # those of benchmarks/baselines.py that read nothing but words
NAME = "robustness"  # of the files
AT_ONCE = 64  # texts in a batch
RESAMPLES = 10_000
TOLERANCE = 0.02  # of a probability; one of a GPU at half the precision is less than that from a CPU's

# --- changes ---------------------------------------------------------------------------------------------------------

DIGIT = r"\d+(?:[.,]\d+)?(?:[ -]1/2|½)?"
NUMBER = rf"(?:{DIGIT}|(?:zero|one|two|three|four|five|six|seven|eight|nine|ten)(?: and a half)?)"
FRESH = r"(?<![\w*/$])(?<!\d[.,])"  # no number, date or word is under way
WHOLE = r"(?![\w/%]|[.,:]\d)"  # none goes on
BEST = r"(?:(?:5|10|20|100|five|ten)(?:\.0)?|(?:4|four)(?! of\b)|\*{3,})"  # 3/4 of the film is no rating
POINTS = r"(?:[ -]?(?:stars?|points?))?"
ASKED = (
    r"(?P<asked>\b(?:rat(?:e|ed|ing)|graded?|scored?|g[ai]ve|giving)\b"
    r"(?: (?:it|this|of|is|was|the|film|movie|an?)\b)* ?[:=]? *)"
)
THEN = "because|for|and|but|only|just|instead|if|since|as|when|rather|or"  # what a noun does not stand before
RATINGS = (
    rf"{FRESH}(?:{NUMBER}|\*+(?: ?1/2|½)?){POINTS} ?(?:out of|/) ?(?:an? )?{BEST}{WHOLE}{POINTS}",  # 8 out of 10
    rf"{FRESH}(?:{NUMBER}|no|half a)[ -]*(?:stars?\b|\*+)",  # 7.5 stars, three stars
    rf"(?:{FRESH}{NUMBER} )?\bthumbs?[ -](?:up|down)\b",
    r"(?<![\w*])(?:\*{2,6}(?: ?1/2|½)?|\*(?: ?1/2|½))(?![\w*])",  # ***1/2
    r"(?<![\w+-])(?-i:[A-DF])[+-](?![\w+-])",  # A+
    rf"""{ASKED}["“]?(?:{NUMBER}{WHOLE}(?= *(?:[^\s\w/]|$|(?:{THEN})\b))|(?-i:[A-F][+-]?)(?![\w']))""",  # I give it a 9
)
RATING = re.compile("|".join(RATINGS), re.IGNORECASE)
DIGITS = re.compile(r"(?<![\w'-])[\w'-]*\d(?:[\w'/:-]|[.,](?=\d))*")
SMALL = r"[^\W\d_A-Z]"
NAME_WORD = rf"(?<![\w'’.-])(?:(?:Mr|Mrs|Ms|Dr)\. +)?(?:[A-Z]['’])?[A-Z]{SMALL}[^\W\d_]*(?:-[^\W\d_]+)*"
NAMES = re.compile(rf"{NAME_WORD}(?: +{NAME_WORD})*")
QUOTED = re.compile(
    """(?<!\\w)(?:"[A-Z0-9][^"“”<>\n]{0,60}"|“[A-Z0-9][^"“”<>\n]{0,60}”|'[A-Z0-9][^'"<>\n]{1,60}'(?!\\w))"""
)
STARTS_SENTENCE = re.compile(r"""(?:^|(?<!\b[A-Z])[.!?:…]|[>*•-])["'“”‘’()\[\s]*$""")
LINE_BREAK = re.compile(r"<\s*/?\s*br\s*/?\s*>", re.IGNORECASE)


def as_it_is(text: str) -> str:
    return text


def without_ratings(text: str) -> str:
    """Takes out 10/10, 4 / 10, 8 out of 10, 7.5 stars, three stars, ** out of ****, A+, thumbs up, I give it a [9].

    Fractions of 4 stay before "of", and dates stay; "three stars" goes too where they are people.
    """
    return RATING.sub(lambda found: f"{found['asked'] or ''} ", text)


def without_digits(text: str) -> str:
    """Takes out every word that holds a digit; a number such as 1,000.5 or 10/10 is one word."""
    return DIGITS.sub(" ", text)


def without_names(text: str) -> str:
    """Quoted titles and capitalised words become "it", neighbours together one.

    A title is what stands in quotes, starts with a capital or a digit, and is at most 60 letters long. Capitalised is
    a capital with a small letter behind it, so I and words in capitals stay, where no sentence starts: that is, behind
    none of . ! ? : … and no line break. A word that is so found, or stands in front of another capitalised one, goes
    at the start of a sentence as well, unless the review has it in small letters too. With the names go Hollywood,
    English and Monday, and Words Stressed Like This.
    """
    text = QUOTED.sub("it", text)
    found = [(run[0].split(), starts_sentence(text, run.start())) for run in NAMES.finditer(text)]
    small = set(re.findall(r"\b[a-z]\w*", text))
    names = {word for run, starts in found if not starts or len(run) > 1 for word in run if word.lower() not in small}

    def it(run: re.Match[str]) -> str:
        if not starts_sentence(text, run.start()):
            return "it"
        first, *more = run[0].split()
        if first in names:
            return "It"
        return f"{first} it" if more else first

    return NAMES.sub(it, text)


def starts_sentence(text: str, place: int) -> bool:
    """Whether a sentence starts there; one capital with a full stop is an initial and ends none."""
    return STARTS_SENTENCE.search(text[max(0, place - 12) : place]) is not None if place else True


def without_names_and_digits(text: str) -> str:
    return without_digits(without_names(text))


def pieces(text: str) -> list[str]:
    """What stands between spaces and line breaks."""
    return LINE_BREAK.sub(" ", text).split()


def dice(text: str) -> random.Random:
    """The same for the same text, in any process; a lone surrogate, which UTF-8 has no bytes for, is a letter too."""
    return random.Random(text.encode("utf-8", "surrogatepass"))


def with_words_dropped(text: str, share: float = 0.1) -> str:
    """Takes out a share of the words between spaces, drawn by the text itself: each time the same."""
    found = pieces(text)
    kept = dice(text).sample(range(len(found)), len(found) - round(share * len(found)))
    return " ".join(found[place] for place in sorted(kept))


def shuffled(text: str) -> str:
    """All words between spaces in random order, drawn by the text itself; don't and "good." are one word each."""
    found = pieces(text)
    dice(text).shuffle(found)
    return " ".join(found)


CHANGES: dict[str, Callable[[str], str]] = {
    "as it is": as_it_is,
    "ratings": without_ratings,
    "digits": without_digits,
    "names": without_names,
    "names and digits": without_names_and_digits,
    "10% dropped": with_words_dropped,
    "shuffled": shuffled,
}
AS_IT_IS = next(iter(CHANGES))


# --- pairs -----------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Two texts that differ by a small edit, the first praise and the second blame. kind: of the edit."""

    kind: str
    positive: str
    negative: str


def read_pairs(file: Path = CONTRAST) -> list[Pair]:
    """Raises UserError naming the line that is not kind, positive, negative."""
    with file.open(encoding="utf-8", newline="") as lines:
        table = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if next(table, None) != list(Pair._fields):
            raise UserError(f"{file} does not begin with the columns {', '.join(Pair._fields)}: add that line")
        found = []
        for number, line in enumerate(table, 2):
            if len(line) != 3 or not all(line):
                raise UserError(
                    f"{file}, line {number}, is not kind, positive and negative with a tab between: mend it"
                )
            found.append(Pair(*line))
    return found


# --- labelling -------------------------------------------------------------------------------------------------------

Answers = dict[str, tuple[int, float]]  # of each text its class, and the probability of that


class Judge(NamedTuple):
    """What the seeds of one model say of the same texts. label: of the row."""

    label: str
    answers: list[Answers]

    def right_NS(self, texts: Sequence[str], labels_N: Sequence[int] | np.ndarray) -> np.ndarray:
        pairs = list(zip(texts, labels_N, strict=True))
        return np.array([[said[text][0] == label for said in self.answers] for text, label in pairs], dtype=bool)


def answers_of_run(run: Run, texts: Sequence[str]) -> Answers:
    """What its best checkpoint says of each text, in batches of like length."""
    reader, _ = load_reader({"run": str(run.folder), "data": {}})
    assert isinstance(reader, Reader)
    labels: list[str] = run.metrics["labels"]
    ordered = sorted(texts, key=len)
    parts = (ordered[start : start + AT_ONCE] for start in range(0, len(ordered), AT_ONCE))
    found = [one for some in parts for one in reader.label(some)]
    return {one.text: (labels.index(one.output), one.probability) for one in found}


def check_unchanged(run: Run, answers: Answers, texts: Sequence[str], recorded: Predictions, split: str) -> None:
    """Raises UserError where a run says something else of its reviews than stands in its run folder."""
    assert recorded.predicted_N is not None
    said = [answers[text] for text in texts]
    label_N, probability_N = np.array([label for label, _ in said]), np.array([sure for _, sure in said])
    told_N = np.where(label_N == recorded.predicted_N, recorded.confidence_N, 1 - recorded.confidence_N)
    if other := int((np.abs(told_N - probability_N) > TOLERANCE).sum()):
        raise UserError(
            f"{display(run.folder)} says something else of {other} of {len(texts)} {split} reviews than its "
            f"{SPLIT_FILES[split][0]}: its checkpoint is not the one that was scored. Copy the run folder again, or "
            "train again"
        )


def task_of(run: Run, split: str) -> baselines.Task:
    """What the baselines read: the corpus of a run. Raises UserError where it is no longer that."""
    overrides = [
        f"data.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in flat(run.settings["data"]).items()
    ]
    task = baselines.read(overrides)
    ours, theirs = task.corpus.fingerprints[split], run.metrics[FINGERPRINT[split]]
    if ours != theirs:
        raise UserError(
            f"{split} of {display(run.folder)} has fingerprint {theirs}, but its data now {ours}: train again"
        )
    return task


def answers_of_baseline(name: str, task: baselines.Task, texts: Sequence[str]) -> Answers:
    """What the baseline with the best validation accuracy says of each text, which takes the place of test."""
    baseline = baselines.BASELINES[name]
    tokenizer = Tokenizer(task.data["tokenizer"], task.corpus.glove.words)
    words = [" ".join(word.text for word in tokenizer.words(text)) for text in texts]
    features = baseline.features(task._replace(words=task.words | {"test": words}))
    fitted = [baseline.fit(features, task, value, 1) for value in baseline.grid]
    best = max(fitted, key=lambda model: baselines.scores_of(model, features, task, "validation").accuracy)
    logits_NC = np.asarray(best.logits_NC(features["test"]))
    probabilities_NC = np.exp(logits_NC - np.logaddexp.reduce(logits_NC, axis=1, keepdims=True))
    found = zip(texts, probabilities_NC.argmax(1).tolist(), probabilities_NC.max(1).tolist(), strict=True)
    return {text: (label, sure) for text, label, sure in found}


# --- measuring -------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What was measured: what each of `judges` says of the texts and of the pairs."""

    test_set: str
    split: str
    judges: list[Judge]
    texts: dict[str, list[str]]  # of each change, N
    labels_N: np.ndarray
    pairs: list[Pair]
    skipped: list[Skipped]

    def right_NS(self, judge: Judge, change: str) -> np.ndarray:
        return judge.right_NS(self.texts[change], self.labels_N)

    def changed(self, change: str) -> float:
        """The share of the reviews that a change makes into others."""
        both = zip(self.texts[change], self.texts[AS_IT_IS], strict=True)
        return float(np.mean([new != old for new, old in both]))

    def lengths(self) -> dict[str, np.ndarray]:
        """Masks of the reviews: five equal parts by length."""
        return statistics.length_slices(np.array([len(text.split()) for text in self.texts[AS_IT_IS]]), "words")

    def kinds(self) -> dict[str, np.ndarray]:
        """Masks of the pairs: those of each kind, and all."""
        kinds = [pair.kind for pair in self.pairs]
        each = {kind: np.array([one == kind for one in kinds]) for kind in dict.fromkeys(kinds)}
        return each | {"all": np.ones(len(kinds), dtype=bool)}

    def pairs_K2S(self, judge: Judge) -> np.ndarray:
        """Which texts of each pair are labelled right."""
        count = len(self.pairs)
        return np.stack(
            [
                judge.right_NS([pair.positive for pair in self.pairs], [1] * count),
                judge.right_NS([pair.negative for pair in self.pairs], [0] * count),
            ],
            axis=1,
        )


def classifiers(folders: Iterable[str | Path], split: str) -> tuple[list[Run], dict[Path, Predictions], list[Skipped]]:
    """The runs with a model and their predictions, of the same reviews, and what was passed over.

    Raises UserError for a folder without runs, for runs of other things than reviews of two labels, or for those that
    were scored on different reviews.
    """
    runs, skipped = find_runs(folders)
    for run in runs:
        if run.items != REVIEWS:
            raise UserError(f"{display(run.folder)} writes {run.items}: give runs that label reviews")
        if len(run.metrics["labels"]) != 2:
            raise UserError(
                f"{display(run.folder)} has {len(run.metrics['labels'])} labels: give runs of two, blame and praise"
            )
        if run.metrics["labels"][0].lower().startswith("pos"):  # the pairs would be judged upside down
            raise UserError(
                f"{display(run.folder)} has praise as its first label: train with data.label_names=[neg,pos]"
            )
    models = [run for run in runs if (run.folder / "checkpoints" / "best.ckpt").exists()]
    for run in runs:
        if run not in models:
            skipped.append({"folder": display(run.folder), "reason": "it has no checkpoints/best.ckpt"})
    if not models:
        raise UserError(
            f"no run has a model: {skipped[-1]['folder']}: {skipped[-1]['reason']}. Give a trained run's folder"
        )
    if len(by_set(models, split)) > 1:
        raise UserError(f"these runs were scored on different {split} sets: measure those of each set apart")
    predictions, more = read_predictions(models, split)
    if not predictions:
        raise UserError(f"no run has {split} predictions that can be read: {more[0]['reason']}")
    return [run for run in models if run.folder in predictions], predictions, [*skipped, *more]


def measure(folders: Iterable[str | Path], split: str, limit: int | None = None, baseline: str | None = None) -> Found:
    """Labels the reviews of a split as they are and after each change, and the pairs.

    limit: of so many reviews only, evenly spaced over the split. Raises UserError for wrong input, or for a run that
    does not repeat its own predictions.
    """
    runs, predictions, skipped = classifiers(folders, split)
    recorded = predictions[runs[0].folder]
    everything = next((found for run in runs if (found := run.texts(split)) is not None), None)
    if everything is None or len(everything) != len(recorded.rows_N):
        raise UserError(f"{display(runs[0].folder)} has no {SPLIT_FILES[split][1]} that can be read: copy it again")
    count = len(everything)
    chosen_N = np.linspace(0, count - 1, min(limit or count, count)).round().astype(int)
    reviews = [everything[place] for place in chosen_N]
    texts = {name: [change(text) for text in reviews] for name, change in CHANGES.items()}
    pairs = read_pairs()
    distinct = {text for some in texts.values() for text in some} | {text for pair in pairs for text in pair[1:]}
    asked = sorted(distinct)

    def part(one: Predictions) -> Predictions:
        whole = {name: value for name, value in vars(one).items() if value is not None}
        return Predictions(**{name: value[chosen_N] for name, value in whole.items()})

    judges = []
    for variant in variants(runs):
        answers = []
        for run in variant.runs:
            answers.append(answers_of_run(run, asked))
            check_unchanged(run, answers[-1], reviews, part(predictions[run.folder]), split)
        judges.append(Judge(variant.label, answers))
    if baseline:
        judges.append(Judge(baseline, [answers_of_baseline(baseline, task_of(runs[0], split), asked)]))
    return Found(runs[0].metrics["test_set"], split, judges, texts, recorded.labels_N[chosen_N], pairs, skipped)


def paired_intervals(gains_VNS: np.ndarray) -> list[tuple[float, float]]:
    """95% intervals of the mean of each of V gains over reviews, drawn with them and with their seeds."""
    share_NV = gains_VNS.mean(2).T
    means_BV = statistics.review_means(share_NV, RESAMPLES, 0)
    shifts_BV = statistics.seed_shifts(gains_VNS.mean(1), RESAMPLES, 0)
    noise_V = [statistics.seed_noise(gain_NS) / max(gain_NS.mean(1).var(), 1e-12) for gain_NS in gains_VNS]
    freedom = gains_VNS.shape[2] - 1
    columns = zip(means_BV.T, shifts_BV.T, noise_V, strict=True)
    return [statistics.interval(means_B, shifts_B, freedom, noise, LEVEL) for means_B, shifts_B, noise in columns]


# --- showing ---------------------------------------------------------------------------------------------------------


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))


def row_name(judge: Judge) -> str:
    """The label with the number of seeds, where there are several."""
    return f"`{judge.label}`" + (f" ({len(judge.answers)} seeds)" if len(judge.answers) > 1 else "")


def of_changes(found: Found) -> str:
    """Accuracy after each change, its difference from that before in points, and the interval of that."""
    changes = list(CHANGES)
    lines = [["*reviews that it changes*", *(f"{100 * found.changed(change):.0f}" for change in changes)]]
    for judge in found.judges:
        before_NS, *after = (found.right_NS(judge, change).astype(float) for change in changes)
        gains_VNS = np.stack([right_NS - before_NS for right_NS in after])
        cells = [row_name(judge), f"{100 * before_NS.mean():.1f}"]
        for right_NS, gain_NS, (low, high) in zip(after, gains_VNS, paired_intervals(gains_VNS), strict=True):
            difference = f"{signed(gain_NS.mean())} ({signed(low)} to {signed(high)})"
            cells.append(f"{100 * right_NS.mean():.1f}, {difference}")
        lines.append(cells)
    return table(["model", *changes], lines)


def of_lengths(found: Found) -> str:
    """Accuracy by length, of the reviews as they are."""
    masks = found.lengths()
    lines = []
    for judge in found.judges:
        right_NS = found.right_NS(judge, AS_IT_IS)
        lines.append([row_name(judge), *(f"{100 * right_NS[mask].mean():.1f}" for mask in masks.values())])
    return table(["model", *(f"{name} ({mask.sum():,})" for name, mask in masks.items())], lines)


def of_pairs(found: Found) -> str:
    """Share of the texts that are right, and of the pairs of which both are."""
    masks = found.kinds()
    lines = []
    for judge in found.judges:
        right_K2S = found.pairs_K2S(judge)
        parts = [right_K2S[mask] for mask in masks.values()]
        lines.append([row_name(judge), *(f"{100 * one.mean():.0f} / {100 * one.all(1).mean():.0f}" for one in parts)])
    return table(["model", *(f"{kind} ({mask.sum()})" for kind, mask in masks.items())], lines)


def markdown(found: Found) -> str:
    """All tables, each with what it shows."""
    count = len(found.labels_N)
    return (
        f"Accuracy (%) on {count:,} {found.split} reviews of {found.test_set}, as they are and after a change, with "
        f"the difference in points and its paired {100 * LEVEL:g} % interval.\n"
        "Taken out: ratings such as 10/10 or three stars; words with a digit; names and quoted titles, each of which "
        'becomes "it"; 10 % of the words. Shuffled: all words in random order.\n\n'
        f"{of_changes(found)}\n"
        f"Accuracy (%) by length, as they are (reviews):\n\n{of_lengths(found)}\n"
        f"Contrast pairs, texts that are right / pairs with both right (%), by the kind of the edit (pairs):\n\n"
        f"{of_pairs(found)}"
    )


def picture(found: Found) -> "Figure":
    """For each change a row per model: its accuracy, and a line from that of the reviews as they are."""
    import matplotlib

    count, changes = len(found.judges), list(CHANGES)
    styles: list[Any] = list(COLORS)
    if count > len(COLORS):
        styles = list(matplotlib.colormaps["viridis"]([0.9 * place / (count - 1) for place in range(count)]))
    figure, axes = row_chart(changes)
    figure.set_figheight(1.4 + 0.25 * count + len(changes) * (0.16 + 0.14 * count))
    for number, judge in enumerate(found.judges):
        accuracies = percents(float(found.right_NS(judge, change).mean()) for change in changes)
        offset = 0.7 * ((number + 0.5) / count - 0.5)
        marker, color = MARKERS[number % len(MARKERS)], styles[number]
        for place, accuracy in enumerate(accuracies):
            axes.plot((accuracies[0], accuracy), [place + offset] * 2, color=color, lw=1.2, alpha=0.5)
            axes.plot(accuracy, place + offset, marker, color=color, ms=4.5)
        axes.plot([], [], marker, color=color, ms=4.5, label=wrapped(row_name(judge).replace("`", ""), 40))
    axes.plot([], [], color=GREY, lw=1.2, alpha=0.5, label="from the reviews as they are")
    axes.set_ylim(len(changes) - 0.5, -0.5)
    for place in range(1, len(changes)):
        axes.axhline(place - 0.5, color="black", lw=0.4, alpha=0.3)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"{found.split} accuracy (%)", fontsize=9)
    return finish(figure, "Accuracy on changed reviews", legend=2)


def write(found: Found, folder: Path) -> None:
    """robustness.md and robustness.png."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / f"{NAME}.md", markdown(found))
    write_atomically(folder / f"{NAME}.png", png(picture(found)))


def count_of(word: str) -> int:
    """Raises ArgumentTypeError for what is no whole number of at least 1."""
    if not (word.isdecimal() and int(word)):
        raise argparse.ArgumentTypeError(f"{word} is not a whole number of at least 1")
    return int(word)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders, or folders that hold some at any depth")
    parser.add_argument("--baseline", choices=BASELINES, help="fitted on the first run's training reviews, too")
    parser.add_argument("--split", choices=SPLIT_FILES, default="test")
    parser.add_argument("--limit", type=count_of, help="so many reviews, evenly spaced over the split")
    parser.add_argument("--out", type=Path, help=f"folder for {NAME}.md and {NAME}.png")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.baseline and baselines.version("scikit-learn") is None:
            raise UserError("the baselines need scikit-learn: pip install 'imdbattn[baselines]'")
        found = measure(chosen.runs, chosen.split, chosen.limit, chosen.baseline)
        for one in found.skipped:
            print(f"passed over: {one['folder']} ({one['reason']})", file=sys.stderr)
        print(markdown(found), end="")
        if chosen.out:
            write(found, chosen.out)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
