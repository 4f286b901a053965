"""Reviews are read correctly from every source, cut in blocks, never leak."""

import csv
import itertools
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imdbattn.data.corpus import find_source, load_reviews
from imdbattn.data.splits import Split, Texts, block_cut, cut_reviews
from imdbattn.data.user_files import review_files as user_files
from imdbattn.errors import UserError
from tests.world import write_files

TEXTS = ['Good, "very" good', "bad\nand long", "a <br /> b", "ünï", "", *"xyzvwpq"]
LABELS = ["pos", "neg"] * 6
SHARES = {"validation": 0.2, "test": 0.2}
DEFAULT = {"validation": 0.1, "test": 0.2}


def write(path, texts=TEXTS, labels=LABELS, columns=("text", "label")):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(texts, labels, strict=True)])
    return path


def data(settings, path, *overrides):
    return settings(f"data.path='{path}'", *overrides)


def test_columns_and_label_names_are_settings(data_settings, tmp_path):
    def read(labels, names):
        path = write(
            tmp_path / "r.csv", labels=labels * (12 // len(labels)), columns=("review", "stars")
        )
        given = [f"data.label_names=[{names}]"] if names else []
        words = ["data.text_column=review", "data.label_column=stars", *given]
        reviews = find_source(data(data_settings, path, *words)).load()
        return list(reviews.label_names), reviews.splits[""].labels.tolist()[: len(labels)]

    assert read([3, 1, 2], None) == (["1", "2", "3"], [2, 0, 1])
    assert read([1, 1.0, 0, 0.0], None) == (["0", "1"], [1, 1, 0, 0])  # of two programs
    assert read([3.0, 1.0, 2.0], "'3','2','1'")[1] == [0, 2, 1]  # values that are stored as floats
    assert read([1.0, 0.0], "'1.0','0.0'")[1] == [0, 1]  # the other order than as places
    # names for labels that are places already
    assert read([2, 0, 1], "bad,fair,good")[1] == [2, 0, 1]


def test_a_folder_like_aclimdb_is_read(data_settings, tmp_path):
    for folder in itertools.product(("train", "test"), ("pos", "neg", "unsup")):
        files = {f"{name}.txt": " ".join((*folder, name)) for name in ("10_3", "2_7")}
        write_files(tmp_path.joinpath(*folder), files)
    splits = find_source(data(data_settings, tmp_path)).load().splits
    names = ["neg 2_7", "neg 10_3", "pos 2_7", "pos 10_3"]
    assert splits["train"].texts == [f"train {name}" for name in names]
    assert splits["test"].labels.tolist() == [0, 0, 1, 1]
    other = find_source(data(data_settings, tmp_path, "data.label_names=[pos,neg]"))
    assert other.load().splits["test"].labels.tolist() == [1, 1, 0, 0]
    assert other.key != find_source(data(data_settings, tmp_path)).key
    with pytest.raises(UserError, match=r"has the label neg, which is not one of pos, good"):
        find_source(data(data_settings, tmp_path, "data.label_names=[pos,good]")).load()


def test_the_packaged_split_has_the_sizes_that_readme_states(data_settings):
    source = find_source(data_settings("data.source=packaged"))
    whole = source.load()
    assert len(whole.splits[""]) == 25_000
    reviews = cut_reviews(whole, source.name, DEFAULT)
    sizes = [len(reviews.splits[name]) for name in ("train", "validation", "test")]
    assert sizes == [17_471, 2_500, 5_000]
    assert reviews.dropped == 17_500 - 17_471
    assert all(abs(split.labels.mean() - 0.5) < 0.01 for split in reviews.splits.values())


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=200),
    st.floats(0.05, 0.4),
    st.floats(0.05, 0.4),
)
def test_a_cut_takes_consecutive_blocks_of_each_class(labels, validation, test):
    labels = np.array(labels)
    shares = {"train": 1 - validation - test, "validation": validation, "test": test}
    reviews = Split([""] * len(labels), labels, np.arange(len(labels)))
    parts = block_cut(reviews, {"validation": validation, "test": test})
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(labels)))
    for label in np.unique(labels):
        order = [
            name
            for row in np.flatnonzero(labels == label)
            for name, part in parts.items()
            if row in part
        ]
        assert order == sorted(order, key=list(shares).index)
        for name, share in shares.items():
            assert abs(order.count(name) - share * len(order)) <= 1


@given(st.data(), st.permutations([0, 1] * 30))
def test_no_text_of_validation_or_test_is_trained_on(data, labels):
    """Training texts are overwritten with texts of validation and of test, of whatever label and
    with whatever spaces."""
    labels, texts = np.array(labels), [f"review {row}" for row in range(len(labels))]
    whole = Split(texts, labels, np.arange(len(texts)))
    rows = {name: part.tolist() for name, part in block_cut(whole, SHARES).items()}
    copies = set()
    for name in ("validation", "test"):
        for row in data.draw(
            st.lists(st.sampled_from(rows["train"]), min_size=1, max_size=4), f"copies of {name}"
        ):
            copied = texts[data.draw(st.sampled_from(rows[name]))]
            texts[row] = copied.replace(" ", data.draw(st.sampled_from((" ", " \n  "))))
            copies.add(row)
    reviews = cut_reviews(Texts({"": whole}, ["0", "1"]), "s", SHARES)
    rows["train"] = [row for row in rows["train"] if row not in copies]
    assert {name: split.rows.tolist() for name, split in reviews.splits.items()} == rows
    assert reviews.dropped == len(copies)


def test_validation_taken_from_training_has_no_text_of_the_test_split():
    """Otherwise the best epoch would be chosen on test reviews."""
    texts, labels = [f"review {row}" for row in range(60)], np.array([0, 1] * 30)
    train = Split(texts, labels, np.arange(60))
    test = train.select(range(45, 60))
    reviews = cut_reviews(Texts({"train": train, "test": test}, ["0", "1"]), "s", SHARES)
    sizes = {name: len(split) for name, split in reviews.splits.items()}
    assert not set(reviews.splits["validation"].texts) & set(test.texts)
    assert (reviews.dropped, sum(sizes.values())) == (15, 60)


def test_auto_is_the_path_or_the_wheel(data_settings, tmp_path, monkeypatch):
    assert find_source(data(data_settings, write(tmp_path / "r.csv"))).kind == "path"
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network is used"))
    assert find_source(data_settings()).kind == "packaged"


def test_the_cache_is_keyed_by_content_and_settings_and_is_used(
    data_settings, small, tmp_path, monkeypatch
):
    texts = [f"good film word{i}" for i in range(40)]
    path = write(tmp_path / "r.csv", texts=texts, labels=LABELS * 3 + LABELS[:4])
    words = [*small, f"data.path={path}", f"data.cache_dir={tmp_path}/cache"]

    def keys(*overrides):
        load_reviews(data_settings(*words, *overrides))
        return {folder.name for folder in (tmp_path / "cache" / "tokens").glob("*/")}

    assert len(keys()) == 1
    with monkeypatch.context() as patch:
        patch.setattr(user_files, "read_reviews", lambda *_: pytest.fail("read again"))
        assert len(keys("data.batch_tokens=99")) == 1
    vectors = tmp_path / "v.txt"
    vectors.write_text("".join(f"{word}{' 1' * 10}\n" for word in ("film", "good")))
    settings = ("data.tokenizer=whitespace", "data.test_share=0.3", "data.label_names=[pos,neg]")
    for more in (*settings, "data.limit=39", f"data.vectors.path={vectors}"):
        before = keys()
        assert keys(more) > before, more
    path.write_text(path.read_text() + "one more,pos\n")
    assert len(keys()) == 7
