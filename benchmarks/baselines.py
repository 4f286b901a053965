"""Bag-of-words baselines on the same reviews as the ladder, written as ordinary run folders, with a
Markdown table.

    python -m benchmarks.baselines --folder runs/baselines --only nb_svm mean_glove
    python -m imdbattn.compare runs=[runs/ladder,runs/baselines]

Each baseline is fitted with every value of its one hyperparameter, and the fit with the best
validation accuracy is scored once on test. All read whole reviews, split by data.tokenizer; those
that count words also count words without a vector.

Shape suffixes: N reviews of a split, F features, C classes, D width of the vectors.
"""

import argparse
import ctypes
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from benchmarks.common import review_settings
from imdbattn.data.corpus import (
    ReviewCorpus,
    find_source,
    load_reviews,
    read_splits,
    tokenizer_of,
)
from imdbattn.data.tokenizer import AnyTokenizer
from imdbattn.errors import UserError
from imdbattn.folders.run_folder import SPLIT_FILES, write_json
from imdbattn.io.files import write_atomically
from imdbattn.runs.environment import environment, version
from imdbattn.runs.fit import run_facts, score_facts, write_predictions
from imdbattn.settings.schema import ReviewDataSettings
from imdbattn.tasks.reviews.module import ReviewScores

M_PERTURB = -6  # of glibc's mallopt
FASTTEXT = "fasttext-wheel"  # fasttext 0.9.3 gives NaN with one thread


class Task(NamedTuple):
    """Reviews, as ids and as words."""

    data: ReviewDataSettings
    corpus: ReviewCorpus
    # of each split; a review is one string with spaces between the words
    words: dict[str, list[str]]

    def labels_N(self, split: str) -> np.ndarray:
        return self.corpus.splits[split].labels.numpy()


class Model(NamedTuple):
    """A fitted baseline: a function from the features of a split to logits (N, C), and its number
    of parameters.
    """

    logits_NC: Callable[[Any], np.ndarray]
    parameters: int


Features = dict[str, Any]  # of each split
# scores, the reviews' rows in their source, and the file with their texts
Scored = tuple[ReviewScores, np.ndarray, Path]


class Baseline(NamedTuple):
    """features(task) is called once, fit(features, task, value, seed) for each value of the
    grid.
    """

    features: Callable[[Task], Features]
    fit: Callable[[Features, Task, float, int], Model]
    setting: str  # name of the hyperparameter
    grid: Sequence[float]


class Fit(NamedTuple):
    """A model fitted with one value of the hyperparameter. seconds: to compute the features and to
    fit it.
    """

    value: float
    model: Model
    validation: ReviewScores
    seconds: float


def mean_vectors(task: Task) -> Features:
    """Returns (N, D): the mean of a review's GloVe vectors, standardized; zeros for words without
    one.
    """
    from sklearn.preprocessing import StandardScaler

    vectors = torch.from_numpy(task.corpus.vectors.table_VD)
    means = {}
    for name, split in task.corpus.splits.items():
        mean_ND = torch.nn.functional.embedding_bag(
            split.ids.long(), vectors, split.offsets[:-1], mode="mean"
        )
        means[name] = mean_ND.numpy()
    scaler = StandardScaler().fit(means["train"])
    return {name: scaler.transform(mean_ND) for name, mean_ND in means.items()}


def phrases(task: Task, vectorizer: str, longest: int = 2, **options: Any) -> Features:
    """Returns (N, F), sparse: phrases of 1 to `longest` words of the training reviews, by
    scikit-learn's `vectorizer`.
    """
    from sklearn.feature_extraction import text

    by_spaces = {"tokenizer": str.split, "token_pattern": None, "lowercase": False}
    kind = getattr(text, vectorizer)
    counter = kind(ngram_range=(1, longest), dtype=np.float32, **by_spaces, **options)
    return {
        "train": counter.fit_transform(task.words["train"]),
        "validation": counter.transform(task.words["validation"]),
        "test": counter.transform(task.words["test"]),
    }


def logistic(features: Features, task: Task, c: float, seed: int) -> Model:
    """Fits logistic regression, C = c."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=c, max_iter=1000).fit(features["train"], task.labels_N("train"))

    def logits_NC(features_NF: Any) -> np.ndarray:
        scores = fitted.decision_function(features_NF)  # (N,) with two classes
        return np.stack([np.zeros_like(scores), scores], axis=1) if scores.ndim == 1 else scores

    return Model(logits_NC, fitted.coef_.size + fitted.intercept_.size)


def nb_svm(features: Features, task: Task, c: float, seed: int, beta: float = 0.25) -> Model:
    """Fits NB-SVM (Wang and Manning 2012): a linear SVM on binary features times their log-count
    ratio.

    Its weights are interpolated with their mean magnitude (section 2.3): w' = (1 - beta) |w|_1 / F
    + beta w. There is no offset, as in LIBLINEAR by default; it would dominate the smaller weights.
    """
    from sklearn.svm import LinearSVC

    labels_N = task.labels_N("train")
    ratio_F = log_count_ratio(features["train"], labels_N)
    svm = LinearSVC(C=c, fit_intercept=False, random_state=seed)
    weights_F = svm.fit(features["train"].multiply(ratio_F).tocsr(), labels_N).coef_[0]
    weights_F = ratio_F * ((1 - beta) * np.abs(weights_F).mean() + beta * weights_F)

    slope = slope_of(features["validation"] @ weights_F, task.labels_N("validation"))

    def logits_NC(features_NF: Any) -> np.ndarray:
        logit_N = slope * (features_NF @ weights_F)
        return np.stack([np.zeros_like(logit_N), logit_N], axis=1)

    return Model(logits_NC, len(weights_F))


def nb_logistic(features: Features, task: Task, c: float, seed: int) -> Model:
    """Fits logistic regression on the features of NB-SVM."""
    ratio_F = log_count_ratio(features["train"], task.labels_N("train"))
    fitted = logistic({"train": features["train"].multiply(ratio_F).tocsr()}, task, c, seed)
    return Model(
        lambda features_NF: fitted.logits_NC(features_NF.multiply(ratio_F).tocsr()),
        fitted.parameters,
    )


def log_count_ratio(binary_NF: Any, labels_N: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    """Returns (F,): r = log((p / |p|_1) / (q / |q|_1)), p and q = alpha + counts in class 1 and 0
    (Wang, Manning, eq. 1).
    """
    if labels_N.max() > 1:
        raise UserError(
            "log-count ratios need two labels: omit nb_svm, nb_svm_trigrams and nb_lr with --only"
        )
    p_F, q_F = (alpha + np.asarray(binary_NF[labels_N == label].sum(0)).ravel() for label in (1, 0))
    return np.log((p_F / p_F.sum()) / (q_F / q_F.sum()))


def slope_of(margin_N: np.ndarray, labels_N: np.ndarray) -> float:
    """Returns the slope of P = sigmoid(slope x margin) (Platt 1999), positive and without offset,
    so that no label changes.
    """
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=np.inf, fit_intercept=False).fit(margin_N[:, None], labels_N)
    return max(float(fitted.coef_[0, 0]), 1e-6)


def fasttext(features: Features, task: Task, epochs: float, seed: int) -> Model:
    """Fits fastText with bigrams (Joulin et al. 2017). One thread makes a seed reproducible."""
    import fasttext as library

    pairs = zip(task.labels_N("train"), features["train"], strict=True)
    # shuffled, because each epoch keeps their order
    lines = [f"__label__{label} {words}\n" for label, words in pairs]
    np.random.default_rng(seed).shuffle(lines)
    options = {
        "dim": 10,
        "wordNgrams": 2,
        "lr": 0.5,
        "epoch": epochs,
        "thread": 1,
        "seed": seed,
        "verbose": 0,
    }
    # It reads uninitialized memory. With 255, of which new memory is the complement, glibc's malloc
    # returns zeros.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder) / "train.txt"
        file.write_text("".join(lines), encoding="utf-8")
        stack.callback(mallopt, M_PERTURB, 0)
        mallopt(M_PERTURB, 255)
        fitted = library.train_supervised(str(file), **options)
    order = np.argsort([int(label.removeprefix("__label__")) for label in fitted.get_labels()])
    output_CD = fitted.get_output_matrix()[order]

    # `predict` fails or repeats a probability under numpy 2
    def logits_NC(words_N: list[str]) -> np.ndarray:
        return np.stack([fitted.get_sentence_vector(words) for words in words_N]) @ output_CD.T

    return Model(logits_NC, fitted.get_input_matrix().size + output_CD.size)


counts = partial(phrases, vectorizer="CountVectorizer", binary=True)
tfidf = partial(phrases, vectorizer="TfidfVectorizer", sublinear_tf=True, min_df=2)
BASELINES = {
    "mean_glove": Baseline(mean_vectors, logistic, "C", (0.01, 0.1, 1.0, 10.0)),
    "tfidf": Baseline(tfidf, logistic, "C", (3.0, 10.0, 30.0)),
    "nb_svm": Baseline(counts, nb_svm, "C", (0.001, 0.01, 0.1, 1.0)),
    "nb_svm_trigrams": Baseline(partial(counts, longest=3), nb_svm, "C", (0.001, 0.003, 0.01, 0.1)),
    "nb_lr": Baseline(counts, nb_logistic, "C", (0.003, 0.01, 0.03, 0.1, 1.0)),
    "fasttext": Baseline(lambda task: task.words, fasttext, "epochs", (5, 10, 25)),
}


def read(overrides: Sequence[str]) -> Task:
    """Reads the reviews of a training run with these settings."""
    return task_of(review_settings("data.source=packaged", *overrides).resolved(None, None).data)


def task_of(data: ReviewDataSettings) -> Task:
    """Reads the reviews that the `data` settings describe."""
    corpus = load_reviews(data)
    whole: dict[str, Any] = {"max_tokens": None, "word_dropout": 0.0}
    if isinstance(data.source, str):
        whole["source"] = corpus.source_kind
    data = data.model_copy(update=whole)
    reviews = read_splits(find_source(data), data)
    tokenizer = tokenizer_of(data.tokenizer, corpus.vectors.words)
    words = {name: words_of(split.texts, tokenizer) for name, split in reviews.splits.items()}
    return Task(data, corpus, words)


def words_of(texts: Iterable[str], tokenizer: AnyTokenizer) -> list[str]:
    """Returns the words of each text, separated by spaces."""
    lines = []
    for text in texts:
        lines.append(" ".join(word.text for word in tokenizer.words(text)))
    return lines


def scores_of(model: Model, features: Features, task: Task, split: str) -> ReviewScores:
    """Returns the scores of a model on a split."""
    ids = task.corpus.splits[split]
    logits_NC = np.asarray(model.logits_NC(features[split]), dtype=np.float64)
    return ReviewScores(
        torch.arange(len(ids)), ids.labels, ids.lengths, torch.from_numpy(logits_NC)
    )


def fit_best(name: str, task: Task, seed: int) -> tuple[Fit, Features]:
    """Returns the fit with the best validation accuracy, and the features of all splits."""
    baseline = BASELINES[name]
    fits = []
    start = time.perf_counter()
    features = baseline.features(task)
    counting = time.perf_counter() - start
    for value in baseline.grid:
        start = time.perf_counter()
        model = baseline.fit(features, task, value, seed)
        seconds = counting + time.perf_counter() - start
        fits.append(Fit(value, model, scores_of(model, features, task, "validation"), seconds))
    return max(fits, key=lambda fit: fit.validation.metrics["accuracy"]), features


def run(name: str, seed: int, task: Task, folder: Path) -> dict[str, Any]:
    """Scores the best fit of a baseline on test, writes its run folder, and returns its metrics."""
    baseline = BASELINES[name]
    best, features = fit_best(name, task, seed)
    described = {"name": name, "extends": None, baseline.setting: list(baseline.grid)}
    cfg = OmegaConf.create({"seed": seed, "model": described, "data": task.data.dump()})
    metrics = run_facts(name, seed, task.corpus) | {
        "parameters": best.model.parameters,
        "train_count": len(task.words["train"]),
        "train_seconds": best.seconds,
        "tokens_per_s": len(task.corpus.splits["train"].ids) / best.seconds,
        "chosen": {baseline.setting: best.value},
    }
    scores = {"validation": best.validation, "test": scores_of(best.model, features, task, "test")}
    scored = {}
    for split, split_scores in scores.items():
        rows_N = task.corpus.splits[split].rows
        scored[split] = (split_scores, rows_N, task.corpus.texts_file(split))
    return write(folder, cfg, scored, metrics, ("scikit-learn", FASTTEXT))


def write(
    folder: Path,
    cfg: DictConfig,
    scored: Mapping[str, Scored],
    metrics: Mapping[str, Any],
    packages: Sequence[str] = (),
) -> dict[str, Any]:
    """Writes a run folder, metrics.json last, and returns its content: `metrics` and the scores.

    scored: of each split. packages: further packages whose versions are recorded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.json").unlink(missing_ok=True)  # of an earlier run into the same folder
    write_atomically(folder / "config.yaml", OmegaConf.to_yaml(cfg))
    facts = environment()
    metrics = dict(metrics)
    facts["versions"] |= {package: version(package) for package in packages}
    write_json(folder / "environment.json", facts)
    for split, (scores, rows_N, source) in scored.items():
        predictions, texts = SPLIT_FILES[split]
        write_predictions(folder / predictions, scores, rows_N)
        shutil.copyfile(source, folder / texts)
        metrics |= score_facts("val" if split == "validation" else split, scores)
    write_json(folder / "metrics.json", metrics)
    return metrics


def run_all(
    names: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], folder: Path
) -> Iterator[dict]:
    """Yields the metrics of each baseline and seed. Raises UserError for wrong settings."""
    if "fasttext" in names and version(FASTTEXT) is None:
        print(
            f"fasttext is omitted: it needs pip install {FASTTEXT}==0.9.2, for Python 3.11",
            file=sys.stderr,
        )
        names = [name for name in names if name != "fasttext"]
    task = read(overrides)
    for name in names:
        for seed in seeds if name == "fasttext" else seeds[:1]:
            yield run(name, seed, task, folder / f"{name}-s{seed}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/baselines"), help="folder of the run folders"
    )
    parser.add_argument(
        "--only", nargs="+", choices=BASELINES, default=list(BASELINES), help="baselines to run"
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="for fastText; others use the first"
    )
    parser.add_argument(
        "overrides", nargs="*", help="settings as for training, e.g. data.tokenizer=whitespace"
    )
    options = parser.parse_intermixed_args()
    print("| baseline | seed | chosen | validation % | test % | parameters | s to count and fit |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for metrics in run_all(options.only, options.seeds, options.overrides, options.folder):
        ((setting, value),) = metrics["chosen"].items()
        cells = [f"`{metrics['model']}`", str(metrics["seed"]), f"{setting} {value:g}"]
        cells += [f"{100 * metrics[f'{split}_accuracy']:.1f}" for split in ("val", "test")]
        cells += [f"{metrics['parameters']:,}", f"{metrics['train_seconds']:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
