"""Finished runs become a comparison: each is found once, grouped by seed, and compared on the same test set."""

import csv
import itertools
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from scipy.stats import ttest_ind

from imdbattn.comparison import statistics
from imdbattn.comparison.compare import FEWEST, POINTS, compare_sets, length_groups
from imdbattn.comparison.figures import signed
from imdbattn.comparison.report import (
    notes,
    p_value,
    print_terminal,
    signed_interval,
    verdicts,
    write_all,
    write_sets,
)
from imdbattn.comparison.runs import find_runs, neighbours, variants
from imdbattn.errors import UserError

REVIEWS = 400
WORDS = {"not": ["not", "n't"], "but": ["but"]}
SINGLE = ("comparison.html", "comparison.md", "comparison.json")  # files of one set
AFTER = {"base": "mean", "base_pe": "base", "residual": "base", "residual_pe": "residual"}
SCALED, DOT = ({"_target_": f"imdbattn.nn.scores.{name}"} for name in ("ScaledDot", "Dot"))
LABELS = np.arange(REVIEWS) % 2
TEXTS = [f"I do{'n’t' if n % 4 == 0 else ''} like it{' BUT' if n % 5 == 0 else ''}. {n}" for n in range(REVIEWS)]


def write_run(
    folder: Path, model="mean", seed=1, accuracy=0.8, test=True, fingerprint="f1", metrics=None, right=None, **changed
):
    """A run folder as training leaves it; `accuracy` of the reviews are right, by the same difficulty in all runs.

    right: which of the reviews are right instead.
    """
    settings = {
        "seed": seed,
        "model": {
            "name": model,
            "after": AFTER.get(model),
            "layers": 3,
            "score": SCALED,
            "width": None,
            "dropout": 0.0,
        },
        "data": {"path": "/somewhere", "tokenizer": "ptb"},
    }
    for key, value in changed.items():
        OmegaConf.update(config := OmegaConf.create(settings), key.replace("__", "."), value)
        settings = OmegaConf.to_container(config)
    folder.mkdir(parents=True)
    OmegaConf.save(settings, folder / "config.yaml")
    difficulty = np.random.default_rng(0).permutation(REVIEWS) / REVIEWS
    noise = np.random.default_rng([seed, len(model)]).normal(0, 0.01, REVIEWS)
    probability = np.clip(0.5 + (accuracy - difficulty + noise), 0.01, 0.99)  # of the true label
    if right is not None:
        probability = np.where(right, 0.9, 0.1)
    predicted = np.where(probability > 0.5, LABELS, 1 - LABELS)
    share = float((predicted == LABELS).mean())
    both = np.where(LABELS[:, None] == np.arange(2), probability[:, None], 1 - probability[:, None])
    for prefix in ("", "validation_") if test else ("validation_",):
        columns = {"row": np.arange(REVIEWS) + 7, "label": LABELS, "predicted": predicted, "probability": both.max(1)}
        columns |= {"probabilities": list(both), "length": np.arange(REVIEWS) + 1}
        pq.write_table(pa.table(columns), folder / f"{prefix}predictions.parquet")
        pq.write_table(pa.table({"row": columns["row"], "text": TEXTS}), folder / f"{prefix}reviews.parquet")
    facts = {"model": model, "seed": seed, "test_set": "small", "labels": ["neg", "pos"], "val_accuracy": share}
    facts |= {"test_fingerprint": fingerprint, "val_fingerprint": "v1"} | ({"test_accuracy": share} if test else {})
    (folder / "metrics.json").write_text(json.dumps(facts | (metrics or {})))
    return folder


STRINGS = [" ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: 1 + n % 20]) for n in range(REVIEWS)]


def write_decoded(folder: Path, model="seq2seq", seed=1, reach=10.0, lengths=(1, 10), items="strings", **metrics):
    """A run folder of an encoder-decoder: strings of 1 to 20 letters, right up to about `reach` letters."""
    folder.mkdir(parents=True)
    after = {"seq2seq_attention": "seq2seq"}.get(model)
    data = {"source": "reverse", "lengths": list(lengths), "test_lengths": [1, 20], "test": REVIEWS}
    OmegaConf.save({"seed": seed, "model": {"name": model, "after": after}, "data": data}, folder / "config.yaml")
    length_N = np.array([len(text.split()) for text in STRINGS])
    probability_N = 1 / (1 + np.exp(length_N - reach))  # of the first reference
    right_N = probability_N > np.random.default_rng(seed).random(REVIEWS)
    answers = [text[::-1] for text in STRINGS]
    columns = {"row": np.arange(REVIEWS) + 3, "label": answers, "references": [[text] for text in answers]}
    columns |= {"predicted": [a if ok else "A" for a, ok in zip(answers, right_N, strict=True)], "right": right_N}
    columns |= {"probability": np.maximum(probability_N, 0.4), "label_probability": probability_N, "length": length_N}
    for prefix in ("", "validation_"):
        pq.write_table(pa.table(columns), folder / f"{prefix}predictions.parquet")
        pq.write_table(pa.table({"row": columns["row"], "text": STRINGS}), folder / f"{prefix}reviews.parquet")
    facts = {"model": model, "seed": seed, "test_set": "letters", "items": items, "test_fingerprint": "s1"}
    facts |= {"val_fingerprint": f"v{lengths[1]}", "val_accuracy": 0.9, "test_accuracy": float(right_N.mean())}
    (folder / "metrics.json").write_text(json.dumps(facts | metrics))
    return folder


def labels_of(found: dict) -> list[str]:
    return [rung["label"] for rung in found["rungs"]]


def steps_of(found: dict) -> list[tuple[str, str]]:
    return [(pair["from"], pair["to"]) for pair in found["pairs"]]


def quick_sets(*folders, **options) -> list[dict]:
    return compare_sets(folders, **{"resamples": 200, "words": WORDS} | options)


def quick(*folders, **options) -> dict:
    (found,) = quick_sets(*folders, **options)
    return found


@pytest.fixture(scope="module")
def ladder(tmp_path_factory) -> Path:
    """Three rungs with three seeds, in an unusual order."""
    folder = tmp_path_factory.mktemp("runs")
    for model, accuracy in (("residual", 0.9), ("mean", 0.7), ("base", 0.8)):
        for seed in (3, 1, 2):
            write_run(folder / "day" / f"{model}-{seed}", model, seed, accuracy + 0.003 * seed)
    return folder


def test_each_rung_is_compared_with_the_one_that_it_extends(ladder):
    found = quick(ladder)
    assert labels_of(found) == ["mean", "base", "residual"]
    assert steps_of(found) == [("mean", "base"), ("base", "residual")]
    assert [rung["seeds"] for rung in found["rungs"]] == [[1, 2, 3]] * 3
    assert (found["split"], found["reviews"], found["fingerprint"]) == ("test", REVIEWS, "f1")
    assert [pair["verdict"] for pair in found["pairs"]] == ["better", "better"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_numbers_follow_from_the_predictions(ladder):
    found = quick(ladder)
    rungs = {rung["label"]: rung for rung in found["rungs"]}
    for label, rung in rungs.items():
        tables = [pq.read_table(ladder / "day" / f"{label}-{seed}" / "predictions.parquet") for seed in (1, 2, 3)]
        right = np.array([t["label"].to_numpy() == t["predicted"].to_numpy() for t in tables])
        assert rung["test"]["mean"] == pytest.approx(right.mean())
        assert rung["test"]["sd"] == pytest.approx(right.mean(1).std(ddof=1))
        assert rung["interval"][0] < rung["test"]["mean"] < rung["interval"][1]
        assert sum(one["count"] for one in rung["reliability"]) == pytest.approx(REVIEWS)
        assert np.trace(rung["confusion"]) == pytest.approx(right.sum(1).mean())
        for sliced in rung["slices"].values():
            total = sum(one["reviews"] * one["accuracy"] for one in sliced)
            assert (sum(one["reviews"] for one in sliced), total) == (REVIEWS, pytest.approx(right.sum(1).mean()))
        assert [one["reviews"] for one in rung["slices"]["not"]] == [300, 100]
        assert [one["reviews"] for one in rung["slices"]["but"]] == [320, 80]
        first = right[:, np.arange(REVIEWS) % 5 != 0].mean()  # without BUT: a word less
        assert rung["slices"]["length"][0] == {
            "name": "up to 5 words",
            "reviews": 320,
            "accuracy": pytest.approx(first),
        }
    pair = found["pairs"][0]
    assert pair["difference"] == pytest.approx(rungs["base"]["test"]["mean"] - rungs["mean"]["test"]["mean"])
    assert pair["only_to_right"] - pair["only_from_right"] == pytest.approx(REVIEWS * pair["difference"])
    low, high = pair["interval"]
    numbers = f"by {100 * pair['difference']:.1f} points ({100 * low:.1f} to {100 * high:.1f})"
    assert pair["words"] == f"base against mean: better {numbers}, p < 0.001"


def test_the_interval_of_a_pair_depends_on_the_number_of_seeds(ladder):
    """The degrees of freedom of a pair are those of Welch's test; for one rung's own interval, one less than seeds."""
    right = {}
    for model in ("mean", "base", "residual"):
        tables = [pq.read_table(ladder / "day" / f"{model}-{seed}" / "predictions.parquet") for seed in (1, 2, 3)]
        right[model] = np.array([t["label"].to_numpy() == t["predicted"].to_numpy() for t in tables])
    share_NV = np.stack([found.mean(0) for found in right.values()], axis=1)
    means_BV = statistics.review_means(share_NV, 200, 0)
    shifts_BV = statistics.seed_shifts([found.mean(1) for found in right.values()], 200, 0)
    noise_V = [statistics.seed_noise(found.T) for found in right.values()]
    found = quick(ladder)
    gain_N = share_NV[:, 1] - share_NV[:, 0]
    steps = means_BV[:, 1] - means_BV[:, 0], shifts_BV[:, 1] - shifts_BV[:, 0]
    freedom = ttest_ind(right["mean"].mean(1), right["base"].mean(1), equal_var=False).df
    expected = statistics.interval(*steps, freedom, (noise_V[0] + noise_V[1]) / gain_N.var())
    assert found["pairs"][0]["interval"] == pytest.approx(expected)
    alone = statistics.interval(means_BV[:, 0], shifts_BV[:, 0], 2, noise_V[0] / share_NV[:, 0].var())
    assert found["rungs"][0]["interval"] == pytest.approx(alone)


def test_the_listed_reviews_are_those_on_which_rungs_differ_most(ladder):
    found = quick(ladder, disagreements=5)["disagreements"]
    true = []
    for model in ("mean", "base", "residual"):
        tables = [pq.read_table(ladder / "day" / f"{model}-{seed}" / "predictions.parquet") for seed in (1, 2, 3)]
        true.append(np.mean([np.stack(t["probabilities"].to_numpy())[np.arange(REVIEWS), LABELS] for t in tables], 0))
    expected = np.argsort(-np.std(true, axis=0), kind="stable")[:5]
    assert [one["row"] - 7 for one in found] == expected.tolist()
    assert [one["text"] for one in found] == [TEXTS[n] for n in expected]
    assert found[0]["probability"]["mean"] == pytest.approx(true[0][expected[0]])
    assert found[0]["label"] == ("neg", "pos")[LABELS[expected[0]]]


def test_the_same_seed_gives_the_same_comparison_and_another_one_does_not(ladder):
    assert quick(ladder) == quick(ladder)
    assert quick(ladder)["pairs"][0]["interval"] != quick(ladder, seed=1)["pairs"][0]["interval"]


def test_a_run_that_is_found_several_times_counts_once(ladder, tmp_path):
    (tmp_path / "latest").symlink_to(ladder / "day" / "mean-1")
    (tmp_path / "round").symlink_to(tmp_path)
    runs, skipped = find_runs([ladder, tmp_path, ladder / "day", ladder / "day" / "mean-1", tmp_path / "latest"])
    assert len(runs) == 9
    assert not skipped
    assert [run.folder.name for run in find_runs([tmp_path])[0]] == ["mean-1"]


def test_of_a_repeated_run_the_newest_counts_and_the_other_is_listed(tmp_path):
    new, old = write_run(tmp_path / "a", data__path="/elsewhere"), write_run(tmp_path / "b")
    os.utime(old / "metrics.json", (1, 1))
    runs, skipped = find_runs([tmp_path])
    assert [run.folder for run in runs] == [new]
    assert skipped == [{"folder": str(old), "reason": f"it was run again in {new}"}]


def test_unfinished_and_broken_runs_are_skipped_with_the_reason(tmp_path):
    write_run(tmp_path / "good")
    (write_run(tmp_path / "unfinished", seed=2) / "metrics.json").unlink()
    (write_run(tmp_path / "cut", seed=3) / "metrics.json").write_text('{"model": ')
    (write_run(tmp_path / "yaml", seed=4) / "config.yaml").write_text("model: [")
    (write_run(tmp_path / "lacking", seed=5) / "metrics.json").write_text("{}")
    (write_run(tmp_path / "parquet", seed=6) / "predictions.parquet").write_bytes(b"PAR1")
    few = write_run(tmp_path / "few", seed=7) / "predictions.parquet"
    pq.write_table(pq.read_table(few).slice(0, 12), few)
    for no_run in ("good/evaluations", "wandb/run", ".hydra"):
        (tmp_path / no_run).mkdir(parents=True)
        (tmp_path / no_run / "config.yaml").write_text("")
    found = quick(tmp_path)
    reasons = {Path(one["folder"]).name: one["reason"] for one in found["skipped"]}
    assert [rung["seeds"] for rung in found["rungs"]] == [[1]]
    assert reasons.keys() == {"unfinished", "cut", "yaml", "lacking", "parquet", "few"}
    assert reasons["unfinished"] == "unfinished: it has no metrics.json"
    assert reasons["few"] == "it was scored on other reviews than the other runs (12)"
    assert reasons["lacking"].startswith("unreadable: in its metrics.json seed is missing")
    assert "metrics.json cannot be read" in reasons["cut"]
    assert reasons["parquet"].startswith("unreadable: ")
    assert "config.yaml cannot be read" in reasons["yaml"]


def metrics(**changed):
    """Changes values of metrics.json; ... removes one."""

    def change(folder: Path) -> None:
        found = json.loads((folder / "metrics.json").read_text()) | changed
        found = {name: value for name, value in found.items() if value is not ...}
        (folder / "metrics.json").write_text(json.dumps(found))

    return change


def config(key, value):
    def change(folder: Path) -> None:
        settings = OmegaConf.load(folder / "config.yaml")
        OmegaConf.update(settings, key, value, merge=False)
        OmegaConf.save(settings, folder / "config.yaml")

    return change


def content(name, written):
    return lambda folder: (folder / name).write_bytes(written if isinstance(written, bytes) else written.encode())


def other_kind(name, make):
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def column(name, values):
    """Another column in predictions.parquet; None removes it."""

    def change(folder: Path) -> None:
        table = pq.read_table(folder / "predictions.parquet").drop_columns([name])
        if values is not None:
            table = table.append_column(name, pa.array(values))
        pq.write_table(table, folder / "predictions.parquet")

    return change


MALFORMED = {  # what is wrong -> (how a good run folder gets it, what the reason says)
    "train_seconds of text": (metrics(train_seconds="long"), "in its metrics.json train_seconds="),
    "train_seconds below 0": (metrics(train_seconds=-1), "in its metrics.json train_seconds="),
    "infinite train_seconds": (metrics(train_seconds=float("inf")), "in its metrics.json train_seconds="),
    "parameters of text": (metrics(parameters="many"), "in its metrics.json parameters="),
    "val_accuracy of text": (metrics(val_accuracy="0.9"), "in its metrics.json val_accuracy="),
    "val_accuracy null": (metrics(val_accuracy=None), "in its metrics.json val_accuracy="),
    "val_accuracy NaN": (metrics(val_accuracy=float("nan")), "in its metrics.json val_accuracy="),
    "val_accuracy of 85": (metrics(val_accuracy=85), "in its metrics.json val_accuracy="),
    "val_accuracy true": (metrics(val_accuracy=True), "in its metrics.json val_accuracy="),
    "test_accuracy missing": (metrics(test_accuracy=...), "it has no test predictions"),
    "test_accuracy a list": (metrics(test_accuracy=[0.9]), "in its metrics.json test_accuracy="),
    "test_bleu of text": (metrics(test_bleu="31"), "in its metrics.json test_bleu="),
    "test_set a list": (metrics(test_set=["small"]), "in its metrics.json test_set="),
    "test_set of half a character": (metrics(test_set="\ud800"), "in its metrics.json test_set="),
    "a fingerprint that is a path": (metrics(test_fingerprint="../up"), "in its metrics.json test_fingerprint="),
    "a fingerprint that is a list": (metrics(test_fingerprint=["f1"]), "in its metrics.json test_fingerprint="),
    "items a number": (metrics(items=3), "in its metrics.json items="),
    "seed of text": (metrics(seed="1"), "in its metrics.json seed="),
    "seed a fraction": (metrics(seed=1.5), "in its metrics.json seed="),
    "labels missing": (metrics(labels=...), "in its metrics.json labels is missing"),
    "labels of one text": (metrics(labels="neg"), "in its metrics.json labels="),
    "labels of numbers": (metrics(labels=[0, 1]), "in its metrics.json labels.0="),
    "metrics.json empty": (content("metrics.json", ""), "Expecting value"),
    "metrics.json a list": (content("metrics.json", "[]"), "cannot be read (it does not contain an object)"),
    "metrics.json deeply nested": (content("metrics.json", "[" * 100_000), "recursion"),
    "metrics.json binary": (content("metrics.json", b"\xff\xfe\x00"), "decode"),
    "metrics.json a folder": (
        other_kind("metrics.json", Path.mkdir),
        "metrics.json cannot be read (it is not a regular file)",
    ),
    "metrics.json a pipe": (
        other_kind("metrics.json", os.mkfifo),
        "metrics.json cannot be read (it is not a regular file)",
    ),
    "metrics.csv a pipe": (other_kind("metrics.csv", os.mkfifo), "it is not a regular file"),
    "metrics.csv a folder": (other_kind("metrics.csv", Path.mkdir), "it is not a regular file"),
    "metrics.csv binary": (content("metrics.csv", bytes(range(256))), "unreadable: "),
    "metrics.csv of words": (content("metrics.csv", "epoch,val/loss\n0,low\n"), "could not convert string to float"),
    "metrics.csv with a cell too many": (content("metrics.csv", "epoch,val/loss\n0,1,2\n"), "unreadable: "),
    "metrics.csv of infinite epochs": (
        content("metrics.csv", "epoch,val/loss\n1e300,1\n"),
        "its metrics.csv has epochs",
    ),
    "config.yaml a pipe": (
        other_kind("config.yaml", os.mkfifo),
        "config.yaml cannot be read: it is not a regular file",
    ),
    "config.yaml deeply nested": (content("config.yaml", "[" * 10_000), "config.yaml cannot be read"),
    "model a text": (config("model", "base"), "in its config.yaml model=base must be a group of settings"),
    "model.name missing": (config("model", {"after": "base"}), "in its config.yaml model.name is missing"),
    "model.name a list": (config("model.name", ["base"]), "in its config.yaml model.name="),
    "model.name null": (config("model.name", None), "in its config.yaml model.name="),
    "model.name empty": (config("model.name", ""), "in its config.yaml model.name="),
    "model.name a path": (config("model.name", "a/b"), "in its config.yaml model.name="),
    "model.name the folder above": (config("model.name", ".."), "in its config.yaml model.name="),
    "model.after a list": (config("model.after", ["base"]), "in its config.yaml model.after="),
    "a setting of bytes": (
        content("config.yaml", "model: {name: base, x: !!binary aGk=}\nseed: 9"),
        "JSON serializable",
    ),
    "environment.json a list": (
        content("environment.json", "[]"),
        "environment.json cannot be read (it does not contain an object)",
    ),
    "environment.json a folder": (
        other_kind("environment.json", Path.mkdir),
        "environment.json cannot be read (it is not a regular file)",
    ),
    "versions a list": (content("environment.json", '{"versions": [1]}'), "in its environment.json versions="),
    "predictions a pipe": (other_kind("predictions.parquet", os.mkfifo), "it is not a regular file"),
    "predictions a folder": (other_kind("predictions.parquet", Path.mkdir), "it is not a regular file"),
    "no column label": (column("label", None), "label"),
    "labels out of range": (column("label", [2] * REVIEWS), "its column label has values below 0 or above 1"),
    "labels below 0": (column("label", [-1] * REVIEWS), "its column label has values below 0 or above 1"),
    "labels null": (column("label", [0, None] * (REVIEWS // 2)), "Casting field 'label' with null values"),
    "labels of text": (column("label", ["neg"] * REVIEWS), "Failed to parse string"),
    "predicted out of range": (
        column("predicted", [7] * REVIEWS),
        "its column predicted has values below 0 or above 1",
    ),
    "rows of fractions": (column("row", [0.5] * REVIEWS), "Float value 0.500000 was truncated"),
    "lengths below 0": (column("length", [-1] * REVIEWS), "its column length has values below 0"),
    "probabilities of text": (column("probabilities", [["a", "b"]] * REVIEWS), "unreadable: "),
    "probabilities null": (column("probabilities", [None] * REVIEWS), "unreadable: "),
    "probabilities NaN": (column("probabilities", [[np.nan, 0.5]] * REVIEWS), "did training diverge?"),
    "probabilities above 1": (
        column("probabilities", [[3.0, 0.5]] * REVIEWS),
        "its column probabilities has values below 0 or above 1",
    ),
    "too few probabilities": (
        column("probabilities", [[1.0]] * REVIEWS),
        "unreadable: ",
    ),
    "unequal probabilities": (column("probabilities", [[1.0], [0.5, 0.5]] * (REVIEWS // 2)), "unreadable: "),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_run_is_named_and_the_others_are_compared(kind, tmp_path):
    malform, reason = MALFORMED[kind]
    write_run(tmp_path / "good", "mean")
    malform(write_run(tmp_path / "bad", "base", seed=9))
    found = quick(tmp_path, split="test", resamples=100)
    if kind == next(iter(MALFORMED)):  # figures take a second
        write_all(found, tmp_path / "out")
    assert labels_of(found) == ["mean"]
    assert [Path(one["folder"]).name for one in found["skipped"]] == ["bad"]
    assert reason in found["skipped"][0]["reason"]
    assert "\n" not in found["skipped"][0]["reason"]


MALFORMED_TEXTS = {
    "a folder": other_kind("reviews.parquet", Path.mkdir),
    "a pipe": other_kind("reviews.parquet", os.mkfifo),
    "null": lambda folder: pq.write_table(pa.table({"text": [None] * REVIEWS}), folder / "reviews.parquet"),
    "numbers": lambda folder: pq.write_table(pa.table({"text": [1] * REVIEWS}), folder / "reviews.parquet"),
}


@pytest.mark.parametrize("kind", MALFORMED_TEXTS)
def test_malformed_texts_are_treated_as_missing(kind, tmp_path):
    MALFORMED_TEXTS[kind](write_run(tmp_path / "run"))
    assert quick(tmp_path)["rungs"][0]["slices"].keys() == {"length"}


def test_predictions_for_other_labels_are_skipped(tmp_path):
    """With the same fingerprint, as in an edited run; a third class does not fit into the confusion matrix."""
    write_run(tmp_path / "a", "mean")
    file = write_run(tmp_path / "b", "base", metrics={"labels": ["neg", "pos", "so so"]}) / "predictions.parquet"
    table = pq.read_table(file).drop_columns(["predicted", "probabilities"])
    table = table.append_column("predicted", pa.array([2] * REVIEWS))
    pq.write_table(table.append_column("probabilities", pa.array([[0.2, 0.2, 0.6]] * REVIEWS)), file)
    found = quick(tmp_path, split="test")
    assert labels_of(found) == ["mean"]
    assert found["skipped"][0]["reason"] == "its labels differ from those of the other runs"


def test_a_folder_whose_name_is_not_utf8_is_compared(tmp_path):
    write_run(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / os.fsdecode(b"runs-\xff"))
    page = write_all(quick(tmp_path), tmp_path / "out")
    assert "runs-?" in page.with_name("comparison.json").read_text()


@pytest.mark.parametrize("debug", [{"trainer__fast_dev_run": True}, {"trainer__overfit_batches": 3}])
def test_a_debug_run_is_not_a_result(debug, tmp_path):
    write_run(tmp_path / "good", trainer__fast_dev_run=False, trainer__overfit_batches=0.0)
    folder = write_run(tmp_path / "debug", "base", **debug)
    (folder / "metrics.json").rename(folder / "debug.json")
    found = quick(tmp_path)
    assert labels_of(found) == ["mean"]
    assert found["skipped"][0]["reason"] == "a debug run, not a result"


def test_runs_of_different_test_sets_get_separate_tables(ladder, tmp_path):
    write_run(tmp_path / "residual", "residual", fingerprint="f2")
    write_run(tmp_path / "mean", "mean", fingerprint="f2", metrics={"test_set": "large"}, right=np.ones(REVIEWS, bool))
    found = quick_sets(ladder, tmp_path)
    assert [(one["fingerprint"], one["test_set"], labels_of(one)) for one in found] == [
        ("f1", "small", ["mean", "base", "residual"]),
        ("f2", "large", ["mean", "residual"]),
    ]
    assert found[0] == quick(ladder)
    assert found[1] == quick(tmp_path)
    assert quick(ladder, tmp_path, split="validation")["reviews"] == REVIEWS


def test_a_run_without_test_predictions_makes_only_its_own_set_use_validation(ladder, tmp_path):
    write_run(tmp_path / "tuning", "base", fingerprint="f2", test=False)
    assert [(one["split"], len(one["untested"])) for one in quick_sets(ladder, tmp_path)] == [
        ("test", 0),
        ("validation", 1),
    ]


def test_if_validation_is_compared_each_validation_set_gets_a_table(tmp_path):
    """As for encoder-decoders that are trained on different ranges of lengths and tested on one set."""
    write_run(tmp_path / "a", "mean", test=False)
    write_run(tmp_path / "b", "base", metrics={"val_fingerprint": "v2"})
    found = quick_sets(tmp_path)
    assert [(one["split"], one["fingerprint"], labels_of(one)) for one in found] == [
        ("validation", "v1", ["mean"]),
        ("validation", "v2", ["base"]),
    ]


def test_a_set_that_cannot_be_read_does_not_stop_the_others(ladder, tmp_path):
    (write_run(tmp_path / "broken", fingerprint="f2") / "predictions.parquet").write_bytes(b"PAR1")
    found = quick(ladder, tmp_path)
    assert found["fingerprint"] == "f1"
    assert [Path(one["folder"]).name for one in found["skipped"]] == ["broken"]


@pytest.mark.slow
def test_the_command_prints_and_writes_each_set_with_an_index(ladder, tmp_path, capsys, monkeypatch):
    write_run(tmp_path / "other" / "residual", "residual", fingerprint="f2", metrics={"test_set": "<large>"})
    write_run(tmp_path / "other" / "debug", trainer__fast_dev_run=True)
    out = tmp_path / "out"
    write_sets([quick(ladder)], out)
    assert {path.name for path in out.iterdir()} == {*SINGLE, "figures"}
    comparisons = quick_sets(ladder, tmp_path / "other")
    page = write_sets(comparisons, out)
    assert {path.name for path in out.iterdir()} == {
        "comparison.html",
        "comparison.md",
        "test-f1",
        "test-f2",
        "figures",
    }
    assert not list((out / "figures").iterdir()), "those of the single comparison would be taken for all"
    assert {path.name for path in (out / "test-f1").iterdir()} == {*SINGLE, "figures"}
    for text, ending in ((page.read_text(), "html"), ((out / "comparison.md").read_text(), "md")):
        links = re.findall(r'href="([^"]*)"|\]\(([^)]*)\)', text)
        assert ["".join(link) for link in links] == [f"test-{name}/comparison.{ending}" for name in ("f1", "f2")]
        assert "<large>" not in text.replace("\\<", "")
    monkeypatch.setenv("COLUMNS", "120")
    print_terminal(*comparisons)
    shown = capsys.readouterr().out
    places = [shown.index(text) for text in ("400 test reviews of small", "400 test reviews of <large>", "skipped: ")]
    assert places == sorted(places)
    assert shown.count("skipped: ") == 1


def test_a_sweep_over_two_test_sets_publishes_both(tmp_path, monkeypatch):
    from imdbattn.sweep import sweep
    from imdbattn.tracking import publish

    published = []
    monkeypatch.setattr(
        publish, "publish_comparison", lambda found, out, *_: published.append((found["test_set"], out))
    )
    folders = [write_run(tmp_path / name, fingerprint=name, metrics={"test_set": name}) for name in ("f1", "f2")]
    sweep.compare_jobs(OmegaConf.create({"logger": {"name": "wandb", "group": "g"}}), tmp_path, folders)
    assert published == [(name, tmp_path / "comparison" / f"test-{name}") for name in ("f1", "f2")]
    assert all((out / "comparison.html").exists() for _, out in published)


def test_all_sets_with_a_variant_of_that_label_are_compared_with_it(ladder, tmp_path):
    for model in ("mean", "base", "residual_pe"):
        write_run(tmp_path / "both" / model, model, fingerprint="f2")
    for model in ("mean", "base"):
        write_run(tmp_path / "one" / model, model, fingerprint="f3")
    found = quick_sets(ladder, tmp_path / "both", tmp_path / "one", against="residual_pe")
    assert [steps_of(one) for one in found] == [
        [("mean", "base"), ("base", "residual")],
        [("residual_pe", "mean"), ("residual_pe", "base")],
        [("mean", "base")],
    ]
    with pytest.raises(
        UserError, match="against=bass is not among the runs; choose one of mean, base, residual, resid"
    ):
        quick_sets(ladder, tmp_path / "both", against="bass")


def test_validation_is_compared_if_a_run_has_no_test_predictions(ladder, tmp_path):
    write_run(tmp_path / "tuning", "residual_pe", test=False)
    found = quick(ladder, tmp_path)
    assert (found["split"], found["fingerprint"], found["rungs"][-1]["test"]) == ("validation", "v1", None)
    asked = quick(ladder, tmp_path, split="test")
    assert labels_of(asked) == ["mean", "base", "residual"]
    assert [one["reason"] for one in asked["skipped"]] == ["it has no test predictions"]
    with pytest.raises(UserError, match="no run has test predictions"):
        quick(tmp_path, split="test")


def test_variants_of_a_rung_are_labeled_sorted_and_compared_by_the_setting_in_which_they_differ(tmp_path):
    for model in ("residual", "base", "mean"):
        for layers in (1, 3, 12) if model != "mean" else (0,):
            write_run(tmp_path / f"{model}{layers}", model, model__layers=layers)
    found = quick(tmp_path)
    assert labels_of(found) == ["mean", *(f"{model} layers={n}" for model in ("base", "residual") for n in (1, 3, 12))]
    assert set(steps_of(found)) == {
        ("mean", "base layers=1"),
        *(
            (f"{model} layers={a}", f"{model} layers={b}")
            for model in ("base", "residual")
            for a, b in ((1, 3), (3, 12))
        ),
        *((f"base layers={n}", f"residual layers={n}") for n in (1, 3, 12)),
    }
    assert found["rungs"][1]["varied"] == {"model.layers": 1}


def test_classes_are_labeled_by_name_and_a_grid_is_compared_along_both_of_its_axes(tmp_path):
    for place, score in enumerate((SCALED, DOT)):
        for width in (None, 16, 64):
            write_run(tmp_path / f"{place}{width}", "base", model__score=score, model__width=width)
    found = quick(tmp_path)
    assert labels_of(found) == [f"base {s}{w}" for s in ("Dot", "ScaledDot") for w in ("", " width=16", " width=64")]
    assert set(steps_of(found)) == {
        *(
            (f"base {s}{a}", f"base {s}{b}")
            for s in ("Dot", "ScaledDot")
            for a, b in (("", " width=16"), (" width=16", " width=64"))
        ),
        *((f"base Dot{w}", f"base ScaledDot{w}") for w in ("", " width=16", " width=64")),
    }


def test_a_setting_that_another_takes_its_value_from_counts_once(tmp_path):
    for share in (0.5, 0.0, 0.25):
        write_run(tmp_path / str(share), "base", model__word_dropout=share, data__word_dropout=share)
    found = quick(tmp_path)
    assert labels_of(found) == ["base word_dropout=0", "base word_dropout=0.25", "base word_dropout=0.5"]
    assert steps_of(found) == [(labels_of(found)[0], labels_of(found)[1]), (labels_of(found)[1], labels_of(found)[2])]


def test_objects_in_lists_are_labeled_by_class_and_arguments(tmp_path):
    mine = {"_target_": "mypkg.MyCallback"}
    stopping = [{"_target_": "lightning.EarlyStopping", "patience": n} for n in (3, 5)]
    for place, callbacks in enumerate((None, [mine], [mine, stopping[0]], [stopping[1]])):
        write_run(tmp_path / str(place), trainer__callbacks=callbacks)
    assert set(labels_of(quick(tmp_path))) == {
        "mean",
        "mean callbacks=[MyCallback]",
        "mean callbacks=[MyCallback, EarlyStopping(patience=3)]",
        "mean callbacks=[EarlyStopping(patience=5)]",
    }


def test_settings_with_the_same_short_name_give_different_labels(tmp_path):
    write_run(tmp_path / "a", model__dropout=0.1, data__dropout=0.2)
    write_run(tmp_path / "b", model__dropout=0.2, data__dropout=0.1, seed=2)
    write_run(tmp_path / "c", model__dropout=0.1, data__dropout=0.1)
    write_run(tmp_path / "d", model__dropout=0.2, data__dropout=0.2)
    write_run(tmp_path / "e", model__dropout=None, data__dropout=0.1)
    assert len(set(labels_of(quick(tmp_path)))) == 5


def test_without_the_parent_the_nearest_rung_replaces_it(tmp_path):
    for model in ("mean", "base_pe", "nb_svm", "residual_pe"):
        write_run(tmp_path / model, model, metrics={"parameters": 5} if model == "mean" else None)
    found = quick(tmp_path)
    assert steps_of(found) == [("mean", "base_pe"), ("base_pe", "residual_pe")], "a baseline comes after none"
    assert [found["rungs"][i][key] for i, key in ((0, "parameters"), (1, "parameters"), (0, "tokens_per_s"))] == [
        5,
        None,
        None,
    ]
    assert found["rungs"][0]["curves"] == {}


def test_without_an_equal_variant_of_the_parent_the_most_similar_one_is_used(tmp_path):
    write_run(tmp_path / "a", "base", model__layers=6)
    write_run(tmp_path / "b", "base", model__layers=6, model__width=8)
    write_run(tmp_path / "c", "residual", model__layers=1, model__width=8)
    runs, _ = find_runs([tmp_path])
    found = variants(runs)
    assert [(found[a].label, found[b].label) for a, b in neighbours(found)][-1] == ("base width=8", "residual")


def test_all_variants_can_be_compared_with_one(ladder):
    assert steps_of(quick(ladder, against="base")) == [("base", "mean"), ("base", "residual")]
    with pytest.raises(UserError, match=r"against=bass is not among the runs; choose one of mean, base, residual"):
        quick(ladder, against="bass")


def right_but(*wrong: tuple[int, int]) -> np.ndarray:
    """All reviews are classified correctly except those in the ranges."""
    right_N = np.ones(REVIEWS, dtype=bool)
    for first, behind in wrong:
        right_N[first:behind] = False
    return right_N


def set_against(tmp_path, mean, **others) -> dict:
    """The comparison with `mean`; of each model a list of which reviews its seeds get right."""
    for model, seeds in {"mean": mean, **others}.items():
        for seed, right_N in enumerate(seeds):
            write_run(tmp_path / f"{model}{seed}", model, seed, right=right_N)
    return quick(tmp_path, against="mean", resamples=2000)


def words_of(found: dict) -> list[tuple[str, str, str]]:
    return [(pair["verdict"], pair["about"], pair["words"]) for pair in found["pairs"]]


def numbers_of(pair: dict) -> str:
    return f"{signed(pair['difference'])} points ({signed_interval(pair['interval'])})"


@pytest.mark.parametrize(
    ("mean", "base", "verdict", "said"),
    [
        (right_but((0, 60)), right_but((60, 70)), "better", r"better by 12\.5 points \(8\.\d to 16\.\d\), p < 0\.001"),
        (right_but((60, 70)), right_but((0, 60)), "worse", r"worse by 12\.5 points \(8\.\d to 16\.\d\), p < 0\.001"),
        (right_but((0, 10)), right_but((10, 22)), "undecided", r"no difference shown, −0\.5 points \(.*\), p = 0\.\d+"),
    ],
)
def test_with_one_seed_each_two_trained_models_are_compared(mean, base, verdict, said, tmp_path):
    found = set_against(tmp_path, [mean], base=[base])
    ((decided, about, words),) = words_of(found)
    assert (decided, about) == (verdict, "two trained models")
    assert re.fullmatch(f"base against mean: {said} \\(one seed each: these two trained models only\\)", words)
    total = verdicts(found)
    assert total == (
        f"Of 1 comparison: 1 {verdict}. Comparisons with one seed each (1 of 1) are about two trained models, not "
        "about their architectures."
    )


def test_with_one_seed_against_several_the_result_is_about_that_trained_model(tmp_path):
    found = set_against(
        tmp_path,
        [right_but((0, 60))],
        base=[right_but((60, 70)), right_but((60, 69))],
        residual=[right_but((5, 65)), right_but((0, 59))],
    )
    assert found["rungs"][0]["test"]["sd"] is None
    better, undecided = words_of(found)
    assert (better[:2], undecided[:2]) == (
        ("better", "architecture and trained model"),
        ("undecided", "architecture and trained model"),
    )
    assert all(words.endswith(" (one seed of mean: that trained model only)") for *_, words in (better, undecided))
    assert verdicts(found) == "Of 2 comparisons: 1 better, 1 undecided."


def test_with_several_seeds_each_two_architectures_are_compared(ladder):
    assert {about for _, about, _ in words_of(quick(ladder))} == {"architectures"}


def test_a_difference_that_depends_on_the_seeds_is_undecided(tmp_path):
    """Four points on these reviews, which are significant for these models; another pair of seeds may reverse them."""
    mean = [right_but((0, 20)), right_but((0, 20))]
    found = set_against(tmp_path, mean, base=[right_but((0, 20), (100, 104)), right_but((0, 20), (100, 140))])
    ((verdict, _, words),) = words_of(found)
    (pair,) = found["pairs"]
    assert (verdict, pair["holm_p"] < 0.001, pair["interval"][1] > 0) == ("undecided", True, True)
    assert words == (f"base against mean: no difference shown, {numbers_of(pair)}, p < 0.001")


def test_an_interval_of_reviews_that_includes_0_leaves_two_trained_models_undecided(tmp_path):
    """18 against 8: p is 0.0499, and of the resamples 3 % have no gain."""
    found = set_against(tmp_path, [right_but((0, 18))], base=[right_but((18, 26))])
    ((verdict, _, words),) = words_of(found)
    (pair,) = found["pairs"]
    assert (verdict, pair["holm_p"] < 0.05, pair["interval"][0]) == ("undecided", True, 0.0)
    assert f"no difference shown, {numbers_of(pair)}, p = 0.0499 (one seed each" in words


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_verdict_uses_the_corrected_p_value(seeds, tmp_path):
    """30 against 14 has p = 0.016, and 0.079 as one of five."""
    same = [right_but((0, 30))] * seeds
    others = dict.fromkeys(("base_pe", "residual", "residual_pe", "tuned"), same)
    found = set_against(tmp_path, same, base=[right_but((30, 44))] * seeds, **others)
    pair = found["pairs"][0]
    assert (pair["to"], pair["verdict"]) == ("base", "undecided")
    assert pair["mcnemar_p"] < 0.05 < pair["holm_p"]
    assert pair["interval"][0] > 0
    assert f"no difference shown, {numbers_of(pair)}, {p_value(pair['holm_p'])}" in pair["words"]
    alone = set_against(tmp_path / "alone", same, base=[right_but((30, 44))] * seeds)["pairs"][0]
    assert (alone["verdict"], alone["holm_p"]) == ("better", alone["mcnemar_p"])


def test_the_curves_of_the_seeds_have_common_epochs(tmp_path):
    for seed, epochs in ((1, 3), (2, 2)):
        lines = [["epoch", "step", "val/accuracy"], *([epoch, epoch, 0.5 + epoch / 10] for epoch in range(epochs))]
        with (write_run(tmp_path / str(seed), seed=seed) / "metrics.csv").open("w", newline="") as file:
            csv.writer(file).writerows(lines)
    found = quick(tmp_path)
    assert (found["pairs"], found["disagreements"]) == ([], [])  # of one rung
    assert found["rungs"][0]["curves"] == {
        "val/accuracy": {"epochs": [1, 2, 3], "values": [[0.5, 0.6, 0.7], [0.5, 0.6, None]]}
    }


def test_without_texts_there_are_no_word_slices(ladder, tmp_path):
    shutil.copytree(ladder, tmp_path / "bare")
    for place, file in enumerate((tmp_path / "bare").rglob("reviews.parquet")):
        file.write_bytes(b"broken") if place % 2 else file.unlink()
    found = quick(tmp_path / "bare")
    assert found["rungs"][0]["slices"].keys() == {"length"}
    assert found["disagreements"][0]["text"] is None


def test_the_command_compares_the_runs_that_training_wrote(trained, shell, tmp_path):
    runs = tmp_path / "my runs, a=b"
    for rung in ("mean", "residual"):
        shutil.copytree(trained(rung)[0], runs / rung, ignore=shutil.ignore_patterns("checkpoints"))
    done = shell("compare", f"runs={runs}", "resamples=200", "against=mean", env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0, done.stderr
    found = json.loads((runs / "comparison" / "comparison.json").read_text())
    assert (labels_of(found), found["environments"][0]["threads"]) == (["mean", "residual"], 1)
    assert found["rungs"][1]["test"]["mean"] == trained("residual")[1]["test_accuracy"]
    assert "val/accuracy" in found["rungs"][1]["curves"]
    assert found["pairs"][0]["words"] in " ".join(done.stdout.split())
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "scipy" in imported
    assert not imported & {"torch", "lightning", "datasets", "wandb"}


def test_without_texts_slices_are_of_the_tokens_read(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "reviews.parquet").unlink()
    slices = quick(tmp_path)["rungs"][0]["slices"]
    assert slices.keys() == {"length"}
    assert slices["length"][0]["name"] == "up to 80 tokens read"


def test_a_run_without_test_predictions_is_named_if_validation_is_used_because_of_it(tmp_path):
    write_run(tmp_path / "tested")
    write_run(tmp_path / "untested", "base", test=False)
    found = quick(tmp_path)
    assert found["split"] == "validation"
    assert [Path(folder).name for folder in found["untested"]] == ["untested"]
    assert any("have no test predictions, such as" in note for note in notes(found))
    assert quick(tmp_path, split="test")["untested"] == []


@pytest.fixture(scope="module")
def by_range(tmp_path_factory) -> Path:
    """Two models, each trained on three ranges of lengths, with two seeds; the first model is found last."""
    folder = tmp_path_factory.mktemp("decoded")
    for place, model, further in (("a", "seq2seq_attention", 1.6), ("b", "seq2seq", 0.9)):
        for longest in (10, 20, 5):
            for seed in (1, 2):
                write_decoded(folder / place / f"{longest}-{seed}", model, seed, further * longest, (1, longest))
    return folder


def test_an_encoder_decoder_is_compared_by_its_exact_outputs(by_range):
    found = quick(by_range)
    rung = found["rungs"][4]
    tables = [pq.read_table(by_range / "a" / f"10-{seed}" / "predictions.parquet") for seed in (1, 2)]
    right = np.array([table["right"].to_numpy() for table in tables])
    assert (found["items"], found["labels"], found["reviews"], rung["confusion"]) == ("strings", [], REVIEWS, [])
    assert rung["test"]["values"] == pytest.approx(right.mean(1))
    confidence = [table["probability"].to_numpy() for table in tables]
    assert rung["ece"] == pytest.approx(
        np.mean([statistics.calibration_error(*c) for c in zip(confidence, right, strict=True)])
    )
    assert rung["slices"].keys() == {"length"}, "no string has a word such as not"
    assert rung["slices"]["length"][0]["name"] == "up to 4 symbols"
    review = found["disagreements"][0]
    n = review["row"] - 3
    assert (review["text"], review["label"]) == (STRINGS[n], STRINGS[n][::-1])
    assert review["probability"]["seq2seq lengths=[1, 10]"] == pytest.approx(1 / (1 + np.exp(1 + n % 20 - 9.0)))
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_variants_trained_on_different_ranges_are_named_ordered_and_compared_by_range(by_range):
    found = quick(by_range)
    ranges = ("lengths=[1, 5]", "lengths=[1, 10]", "lengths=[1, 20]")
    assert labels_of(found) == [f"{model} {one}" for model in ("seq2seq", "seq2seq_attention") for one in ranges]
    assert set(steps_of(found)) == {
        *((f"{m} {a}", f"{m} {b}") for m in ("seq2seq", "seq2seq_attention") for a, b in itertools.pairwise(ranges)),
        *((f"seq2seq {one}", f"seq2seq_attention {one}") for one in ranges),
    }
    assert [rung["trained_on"] for rung in found["rungs"]] == [[1, 5], [1, 10], [1, 20]] * 2
    assert {rung["apart_from_range"] for rung in found["rungs"]} == {"seq2seq", "seq2seq_attention"}
    assert not found["one_validation"]
    apart = quick_sets(by_range, split="validation")
    assert {one["fingerprint"]: len(one["rungs"]) for one in apart} == {"v5": 2, "v10": 2, "v20": 2}


def test_without_a_differing_setting_fingerprints_distinguish_the_data(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", metrics={"val_fingerprint": "v2"})
    assert labels_of(quick(tmp_path)) == ["mean validation=v1", "mean validation=v2"]


def test_accuracy_by_length_equals_that_of_the_predictions(by_range):
    for rung in quick(by_range)["rungs"]:
        points = rung["lengths"]
        assert [(one["shortest"], one["longest"], one["mean"]) for one in points] == [(n, n, n) for n in range(1, 21)]
        for seed, total in enumerate(rung["test"]["values"]):
            assert sum(one["reviews"] * one["accuracies"][seed] for one in points) == pytest.approx(REVIEWS * total)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=2000))
def test_points_over_lengths_contain_every_item_once_and_have_a_limited_number(lengths):
    lengths_N = np.array(lengths)
    points = length_groups(lengths_N)
    items = [int(((lengths_N >= low) & (lengths_N <= high)).sum()) for low, high in points]
    assert sum(items) == len(lengths)
    assert all(high < low for (_, high), (low, _) in itertools.pairwise(points))
    assert len(points) == 1 or min(items) >= FEWEST
    assert len(points) <= POINTS


def test_bleu_is_averaged_over_seeds(tmp_path):
    for seed, bleu in ((1, 30.0), (2, 34.0)):
        write_decoded(tmp_path / str(seed), seed=seed, items="sentences", test_bleu=bleu, val_bleu=bleu + 5)
    rung = quick(tmp_path)["rungs"][0]
    assert [rung["bleu"][split]["mean"] for split in ("validation", "test")] == [37.0, 32.0]


def test_words_in_no_review_or_in_every_review_make_no_slices(ladder):
    slices = quick(ladder, words={"but": ["but"], "never": ["whale"], "always": ["like"]})["rungs"][0]["slices"]
    assert slices.keys() == {"length", "but"}


def test_a_decoder_that_diverged_or_lacks_a_column_is_skipped(tmp_path):
    write_decoded(tmp_path / "good")
    for name, change in (
        ("nan", lambda table: table.set_column(6, "label_probability", pa.array([np.nan] * REVIEWS))),
        ("bare", lambda table: table.drop_columns(["right"])),
        ("nameless", lambda table: table.set_column(1, "label", pa.array([None] * REVIEWS, pa.string()))),
    ):
        file = write_decoded(tmp_path / name, seed=len(name)) / "predictions.parquet"
        pq.write_table(change(pq.read_table(file)), file)
    found = quick(tmp_path)
    assert [rung["seeds"] for rung in found["rungs"]] == [[1]]
    reasons = {Path(one["folder"]).name: one["reason"] for one in found["skipped"]}
    assert "not finite: did training diverge?" in reasons["nan"]
    assert "right" in reasons["bare"]
    assert "Casting field 'label' with null values" in reasons["nameless"]


def test_classifiers_and_encoder_decoders_do_not_share_a_table(ladder, by_range):
    assert [(one["items"], len(one["rungs"])) for one in quick_sets(ladder, by_range)] == [
        ("reviews", 3),
        ("strings", 6),
    ]
