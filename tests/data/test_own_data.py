"""A user's own table is read as a stream, labeled, scored by class, and limited."""

import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imdbattn.data.splits import Split, Texts, cut_reviews
from imdbattn.data.user_files.tables import (
    WRITTEN,
    kept_columns,
    open_lines,
    read_columns,
    write_chunks,
)
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.tasks.metrics import confusion, details
from tests.commands import label_texts

TEXTS = ["a good film", "", 'a "dull", bad\nfilm\twith an é', "the plot was lovely", "awful " * 700]


HARD = st.sampled_from("a \\\r\n\t,\"';\x85\u2028")


@pytest.mark.parametrize("suffix", WRITTEN)
@example(texts=[","])
@example(texts=["\t"])
@example(texts=["x,y\nx,y", '"x', 'y"'])
@example(texts=["x\ty\nx\ty", '"x', 'y"'])
@given(texts=st.lists(st.text(HARD | st.characters(exclude_categories=["Cs", "Cc"])), min_size=1))
def test_a_written_table_has_its_values_for_training_and_as_a_stream(
    tmp_path_factory, suffix, texts
):
    """Also if the name of a column and the values of several chunks have quotes and delimiters."""
    file, column = tmp_path_factory.mktemp("table") / f"r{suffix}", f"probability_{texts[0]}"
    write_chunks(file, [{"row": [n], "a": [text], column: [0.5]} for n, text in enumerate(texts)])
    found = open_lines(file, "a")
    assert (list(found.texts), found.total) == (texts, len(texts))
    assert read_columns(file, {"": "a", "b": column}) == [texts, ["0.5"] * len(texts)]


@pytest.mark.parametrize("suffix", WRITTEN)
def test_a_written_column_may_have_no_values_in_some_chunks(tmp_path, suffix):
    file, values = tmp_path / f"r{suffix}", [None, "y", None]
    write_chunks(file, [{"a": ["x"], "b": [value]} for value in values])
    assert [row["b"] or None for row in kept_columns(file, "b")] == values


def test_a_table_is_labeled_into_a_table(trained, settings, shell, tmp_path):
    folder, metrics = trained("residual_pe")
    file = tmp_path / "in.csv"
    write_chunks(file, [{"number": [*range(len(TEXTS))], "re, view": TEXTS}])
    out = tmp_path / "new" / "out.csv"
    done = shell("predict", f"run={folder}", f"file={file}", "column=re, view", f"out={out}")
    assert done.stdout.splitlines() == [f"predictions: {out}"]
    assert "1 of 5 reviews have no words; they are labeled anyway" in done.stderr.splitlines()
    assert os.listdir(out.parent) == [out.name]
    expected, _ = label_texts(settings(f"run={folder}", config="predict"), TEXTS)
    columns = ["row", "text", "label", "probability"]
    columns += [f"probability_{name}" for name in metrics["labels"]]
    rows = pd.read_csv(out, keep_default_na=False).to_dict("records")
    for number, (row, one) in enumerate(zip(rows, expected, strict=True)):
        shares = [one.probabilities[name] for name in metrics["labels"]]
        assert list(row) == columns
        assert [*row.values()][:3] == [number, one.text, one.output]
        assert [*row.values()][3:] == pytest.approx([max(shares), *shares], abs=1e-6)


@given(
    st.integers(2, 5).flatmap(
        lambda c: st.lists(st.tuples(*[st.integers(0, c - 1)] * 2), min_size=1, max_size=40)
    )
)
def test_scores_of_classes_equal_those_of_scikit_learn(pairs):
    metrics = pytest.importorskip("sklearn.metrics")
    labels_N, predicted_N = np.array(pairs).T
    classes = [*range(5)]
    found = details(confusion(labels_N, predicted_N, 5))
    assert (
        found["confusion"]
        == metrics.confusion_matrix(labels_N, predicted_N, labels=classes).tolist()
    )
    assert found["macro_f1"] == pytest.approx(
        metrics.f1_score(labels_N, predicted_N, average="macro", zero_division=0)
    )
    for name, score, known in (
        ("f1", metrics.f1_score, {*labels_N, *predicted_N}),
        ("recall", metrics.recall_score, {*labels_N}),
    ):
        theirs = score(labels_N, predicted_N, labels=classes, average=None, zero_division=0)
        assert found[name] == [pytest.approx(theirs[c]) if c in known else None for c in classes]


def test_other_reviews_may_have_other_names_for_the_classes(
    trained, settings, world, tmp_path, caplog
):
    """By their names in the order of the classes, or by their numbers; a line says how they are
    read. The classes' own names are those classes in any order.
    """
    table = pd.read_csv(world / "reviews.csv").sample(frac=1, random_state=0)
    caplog.set_level("INFO")
    results = []
    own, german = ["neg", "pos"], ["schlecht", "gut"]
    for names, setting in (
        (own, "null"),
        (own, "[pos,neg]"),
        (german, "[schlecht,gut]"),
        (["0", "1"], "null"),
    ):
        caplog.clear()
        labels = table["label"].map(dict(zip(own, names, strict=True)))
        table.assign(label=labels).to_csv(tmp_path / "other.csv")
        words = [f"run={trained('mean')[0]}", f"data.path={tmp_path}/other.csv", "trainer=cpu"]
        words.append(f"data.label_names={setting}")
        metrics = evaluate_run(settings(*words, config="evaluate"))
        line = f"the labels {', '.join(names)} are read as neg, pos"
        assert ("are read as" in caplog.text) == (line in caplog.text) == (names != own)
        keys = ("accuracy", "loss", "confusion", "labels", "test_fingerprint")
        results.append({key: metrics[key] for key in keys})
    assert results[0]["labels"] == ["neg", "pos"]
    assert results[1:] == results[:1] * 3


SHARES = {"validation": 0.1, "test": 0.2}


def texts_of(reviews: Texts) -> dict[str, list[str]]:
    return {name: split.texts for name, split in reviews.splits.items()}


@given(st.integers(9, 200), st.integers(9, 200), st.data())
def test_a_limit_keeps_proportions_and_a_smaller_limit_uses_a_part_of_the_same_reviews(
    one, other, data
):
    labels_N = np.array([0] * one + [1] * other)
    split = Split([f"{n}" for n in range(len(labels_N))], labels_N, np.arange(len(labels_N)))
    whole = cut_reviews(Texts({"": split}, ["a", "b"]), "s", SHARES)
    limits = st.integers(len(labels_N) // 2 + 6, len(labels_N))
    smaller, larger = sorted([data.draw(limits), data.draw(limits)])

    def limited(limit: int) -> dict[str, list[str]]:
        return texts_of(cut_reviews(Texts({"": split}, ["a", "b"]), "s", SHARES, limit=limit))

    assert limited(len(labels_N)) == texts_of(whole)
    splits = limited(smaller)
    assert sum(map(len, splits.values())) == smaller
    for name, texts in splits.items():
        in_order = [text for text in whole.splits[name].texts if text in set(texts)]
        assert texts == in_order
        for label in (0, 1):
            kept = sum(labels_N[int(text)] == label for text in texts)
            share = (whole.splits[name].labels == label).sum() / len(labels_N)
            assert abs(kept - smaller * share) < 2
            first = [text for text in whole.splits[name].texts if labels_N[int(text)] == label]
            assert kept < 10 or kept > 0.7 * len(first) or not set(first[:kept]) <= set(texts)
    assert all(set(texts) <= set(limited(larger)[name]) for name, texts in splits.items())
