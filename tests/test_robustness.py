"""Robustness: changes remove what they should, runs reproduce their predictions, tables show the results."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import baselines, robustness
from benchmarks.robustness import (
    CHANGES,
    check_unchanged,
    main,
    measure,
    paired_intervals,
    pieces,
    read_pairs,
)
from imdbattn.comparison.runs import read_run
from imdbattn.errors import UserError

FILM = "<br /><br />"


def words(text: str) -> str:
    """With single spaces, as tokenizers read it."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def seeds(trained):
    """Two runs that differ only in their seed."""
    return [trained("mean", f"seed={seed}")[0] for seed in (1, 2)]


@pytest.fixture(scope="module")
def results(seeds):
    return measure(seeds, "test")


# --- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"Fine.{FILM}10/10", f"Fine.{FILM}"),
        ("I say 4 / 10, no more", "I say , no more"),
        ("good.8 out of 10.", "good. ."),
        ("It is a 7.5 stars film", "It is a film"),
        ("three stars, ten out of ten, 3 1/2 stars out of 5", ", ,"),
        ("rated * out of **** or ***1/2 or **/****", "rated or or"),
        ("Grade: B+ (C-) A+", "Grade: ( )"),
        ("I give it a 9. I rate this 2 because it is", "I give it a . I rate this because it is"),
        ("two thumbs up, with thumbs-down for my two thumbs", ", with for my two thumbs"),
    ],
)
def test_ratings_are_removed(text, left):
    assert words(CHANGES["ratings"](text)) == left


@pytest.mark.parametrize(
    "text",
    [
        "on 9/11/2001, or 9/10/2004, at 24/7",
        "3/4 of the film in 2 hours, 10 out of 12 or 100 minutes",
        "she stars in it, a star among stars",
        "I give it a chance, gave a speech, and give 10 reasons",
        "f***ing, ***SPOILERS***, an A-list cast, a B movie, parts a- and b-",
    ],
)
def test_text_without_ratings_is_not_changed(text):
    assert CHANGES["ratings"](text) == text


def test_words_with_a_digit_are_removed():
    text = "In 1980s a 9-year-old, No.1 at 10/10, saw 1,000.5 films on mp3."
    assert words(CHANGES["digits"](text)) == "In a , No. at , saw films on ."


@given(st.text())
def test_digits_are_removed_and_every_other_word_stays(text):
    left = CHANGES["digits"](text)
    assert not any(letter.isdecimal() for letter in left)
    assert [word for word in text.split() if word.isalpha()] == [
        w for w in left.split() if w in text.split() and w.isalpha()
    ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("I saw Steven Spielberg's film, and I'm glad.", "I saw it's film, and I'm glad."),
        ("It stars Michael J. Fox. He sings.", "It stars it J. it. He sings."),
        ("a film by Mr. Bean and O'Brien", "a film by it and it"),
        ("We like Kubrick. Kubrick is good. Love is good, love.", "We like it. It is good. Love is good, love."),
        ("The Godfather is bad. Watch the sea.", "The it is bad. Watch the sea."),
        ("Billy Crystal tried.", "It tried."),
        ("See \"Gone with the Wind\" or 'The Big Sleep'!", "See it or it!"),
        ('NEVER see THIS: "he said so", don\'t', 'NEVER see THIS: "he said so", don\'t'),
        (f"Bad film.{FILM}Worse acting. (Poor music.)", f"Bad film.{FILM}Worse acting. (Poor music.)"),
    ],
)
def test_names_and_titles_become_it(text, left):
    assert CHANGES["names"](text) == left


def test_names_and_digits_can_be_removed_together():
    assert words(CHANGES["names and digits"]("the films of Kurosawa, 1954, are fine")) == "the films of it, , are fine"


def test_a_tenth_of_the_words_is_dropped_and_the_others_keep_their_order():
    text = " ".join(f"word{number}" for number in range(100))
    kept = CHANGES["10% dropped"](text).split()
    assert len(kept) == 90
    assert kept == [word for word in text.split() if word in kept]


@given(st.text())
def test_shuffling_keeps_every_word(text):
    assert sorted(CHANGES["shuffled"](text).split()) == sorted(pieces(text))


def test_shuffling_changes_the_order():
    text = " ".join(f"word{number}" for number in range(100))
    assert CHANGES["shuffled"](f"{text}{FILM}end").split() != [*text.split(), "end"]


@pytest.mark.parametrize("change", CHANGES)
@given(text=st.text(alphabet=st.characters() | st.sampled_from("aA1/10*. '\"-")))
def test_a_change_is_deterministic(change, text):
    assert CHANGES[change](text) == CHANGES[change](text)


def test_changes_do_not_affect_plain_words():
    text = "a good film, and it isn't too long"
    assert {name for name, change in CHANGES.items() if change(text) != text} <= {"10% dropped", "shuffled"}


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_the_pairs_are_many_of_each_kind_and_all_different():
    pairs = read_pairs()
    texts = [text for pair in pairs for text in pair[1:]]
    assert len(pairs) >= 100
    assert len(set(texts)) == len(texts)
    kinds = [pair.kind for pair in pairs]
    assert min(kinds.count(kind) for kind in kinds) >= 12


def test_the_texts_of_a_word_order_pair_have_the_same_words():
    def bag(text: str) -> list[str]:
        return sorted(text.lower().replace(",", "").replace(".", "").replace(":", "").split())

    assert all(bag(one.positive) == bag(one.negative) for one in read_pairs() if one.kind == "word order")


# --- labelling -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_unchanged_reviews_are_labeled_as_in_the_run_folder(results, seeds):
    (judge,) = results.judges
    right_NS = results.right_NS(judge, "as it is")
    for place, folder in enumerate(seeds):
        recorded = read_run(folder).predictions("test")
        assert (right_NS[:, place] == recorded.right_N).all()


@pytest.mark.slow
def test_a_run_that_does_not_reproduce_its_predictions_is_refused(seeds, tmp_path):
    shutil.copytree(seeds[0], tmp_path / "run")
    file = tmp_path / "run" / "predictions.parquet"
    table = pq.read_table(file)
    probabilities = np.array(table["probabilities"].to_pylist())
    probabilities[3] = probabilities[3, ::-1]
    columns = {name: table[name] for name in table.column_names} | {
        "probabilities": list(probabilities),
        "predicted": probabilities.argmax(1),
    }
    pq.write_table(pa.table(columns), file)
    with pytest.raises(UserError, match=r"labels 1 of 48 test reviews differently from its predictions\.parquet"):
        measure([tmp_path / "run"], "test")


@pytest.mark.slow
def test_a_review_with_probability_near_one_half_may_get_either_label(seeds):
    run = read_run(seeds[0])
    recorded = run.predictions("test")
    texts = [str(number) for number in range(len(recorded.rows_N))]
    recorded_answers = zip(recorded.predicted_N.tolist(), recorded.confidence_N.tolist(), strict=True)
    answers = dict(zip(texts, recorded_answers, strict=True))
    recorded.confidence_N[0] = 0.501
    answers["0"] = (1 - answers["0"][0], 0.501)
    check_unchanged(run, answers, texts, recorded, "test")
    answers["0"] = (answers["0"][0], 0.6)
    with pytest.raises(UserError, match="labels 1 of 48"):
        check_unchanged(run, answers, texts, recorded, "test")


@pytest.mark.slow
def test_a_mean_of_vectors_does_not_depend_on_order(results):
    (judge,) = results.judges
    assert (results.right_NS(judge, "shuffled") == results.right_NS(judge, "as it is")).all()
    right_K2S = results.pairs_K2S(judge)[results.kinds()["word order"]]
    assert (right_K2S.sum(1) == 1).all()  # of the two texts of a pair one is right, whichever label it gives both


@pytest.mark.slow
def test_a_baseline_reproduces_the_predictions_of_its_run_folder(seeds, small, tmp_path):
    pytest.importorskip("sklearn")
    list(baselines.run_all(["nb_svm"], [1], ["data.source=auto", *small], tmp_path))
    recorded = read_run(tmp_path / "nb_svm-s1").predictions("test")
    results = measure(seeds[:1], "test", baseline="nb_svm")
    assert [judge.label for judge in results.judges] == ["mean", "nb_svm"]
    assert (results.right_NS(results.judges[1], "as it is")[:, 0] == recorded.right_N).all()
    sure = [results.judges[1].answers[0][text][1] for text in results.texts["as it is"]]
    assert np.allclose(sure, recorded.confidence_N)


@pytest.mark.slow
def test_the_baseline_is_chosen_by_validation(seeds, monkeypatch):
    def fit(features, task, value, seed):
        def logits_NC(texts):
            if texts != task.words["validation"]:
                return np.tile([0.0, value], (len(texts), 1))
            return np.eye(2)[(task.labels_N("validation") + (value != 2)) % 2]

        return baselines.Model(logits_NC, 1)

    monkeypatch.setitem(baselines.BASELINES, "stub", baselines.Baseline(lambda task: task.words, fit, "C", (1, 2, 3)))
    answers = robustness.answers_of_baseline("stub", robustness.task_of(read_run(seeds[0]), "test"), ["good", "bad"])
    assert answers == {text: (1, pytest.approx(1 / (1 + np.exp(-2)))) for text in ("good", "bad")}


@pytest.mark.slow
def test_a_baseline_of_other_data_is_refused(seeds, tmp_path):
    shutil.copytree(seeds[0], tmp_path / "run")
    file = tmp_path / "run" / "metrics.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"test_fingerprint": "0123456789abcdef"}))
    with pytest.raises(UserError, match="has fingerprint 0123456789abcdef, but its data now"):
        robustness.task_of(read_run(tmp_path / "run"), "test")


@pytest.mark.slow
def test_a_limit_takes_reviews_that_are_evenly_spaced_over_the_split(results, seeds):
    few = measure(seeds[:1], "test", limit=5)
    everything = results.texts["as it is"]
    assert few.texts["as it is"] == [everything[place] for place in (0, 12, 24, 35, 47)]
    assert few.labels_N.tolist() == results.labels_N[[0, 12, 24, 35, 47]].tolist()


# --- showing ---------------------------------------------------------------------------------------------------------


def test_an_interval_is_paired():
    gain_NS = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], p=[0.02, 0.9, 0.08], size=(2000, 1))
    nothing, (low, high) = paired_intervals(np.stack([np.zeros((2000, 1)), gain_NS]))
    assert nothing == (0.0, 0.0)
    error = 1.96 * gain_NS.std() / np.sqrt(2000)
    assert low == pytest.approx(gain_NS.mean() - error, abs=0.001)
    assert high == pytest.approx(gain_NS.mean() + error, abs=0.001)


def test_an_interval_of_a_few_seeds_is_as_wide_as_that_of_student_t():
    gain_NS = np.tile([0.0, 0.01, 0.02], (50, 1))
    ((low, high),) = paired_intervals(gain_NS[None])
    normal = 2 * 0.01 * np.sqrt(3 / 2)  # from all seeds the lowest to all the highest
    assert high - low == pytest.approx(normal * 4.303 / 1.960, rel=0.01)


@pytest.mark.slow
def test_the_command_prints_and_writes_the_tables(seeds, results, tmp_path, capsys):
    main([*map(str, seeds), "--out", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert (tmp_path / "out" / "robustness.md").read_text() == printed
    assert (tmp_path / "out" / "robustness.png").read_bytes().startswith(b"\x89PNG")
    assert "on 48 test reviews" in printed.splitlines()[0]
    changes, lengths, pairs = (line for line in printed.splitlines() if line.startswith("| `mean` (2 seeds) |"))
    accuracy = np.mean([json.loads((folder / "metrics.json").read_text())["test_accuracy"] for folder in seeds])
    cells = changes.strip("| ").split(" | ")
    assert cells[:2] == ["`mean` (2 seeds)", f"{100 * accuracy:.1f}"]
    assert cells[-1] == f"{100 * accuracy:.1f}, +0.0 (+0.0 to +0.0)"
    assert len(cells) == 1 + len(CHANGES)
    (judge,) = results.judges
    right_NS, right_K2S = results.right_NS(judge, "as it is"), results.pairs_K2S(judge)
    longest, count = map(int, re.findall(r"up to (\d+) words \((\d+)\)", printed)[0])
    shortest = [len(text.split()) <= longest for text in results.texts["as it is"]]
    assert count == sum(shortest) >= 9
    assert lengths.strip("| ").split(" | ")[1] == f"{100 * right_NS[shortest].mean():.1f}"
    both = (right_K2S[:, 0] & right_K2S[:, 1]).mean()
    assert pairs.strip("| ").split(" | ")[-1] == f"{100 * right_K2S.mean():.0f} / {100 * both:.0f}"


@pytest.mark.slow
def test_wrong_input_gives_a_message_of_one_line(seeds, tmp_path, capsys):
    shutil.copytree(seeds[0], tmp_path / "no_model")
    shutil.rmtree(tmp_path / "no_model" / "checkpoints")
    shutil.copytree(seeds[0], tmp_path / "no_texts")
    (tmp_path / "no_texts" / "reviews.parquet").unlink()
    for name, message in (
        ("nowhere", "is not a folder"),
        ("no_model", "no run has a model"),
        ("no_texts", "has no readable reviews.parquet"),
    ):
        with pytest.raises(SystemExit) as ended:
            main([str(tmp_path / name)])
        assert ended.value.code == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    with pytest.raises(SystemExit):
        main([str(seeds[0]), "--limit", "0"])
    assert "--limit 0 must be at least 1" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_of_different_test_sets_are_refused(seeds, tmp_path):
    shutil.copytree(seeds[0], tmp_path / "other")
    file = tmp_path / "other" / "metrics.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"test_fingerprint": "0123456789abcdef"}))
    with pytest.raises(UserError, match="scored on different test sets: give those of one set"):
        measure([seeds[0], tmp_path / "other"], "test")


@pytest.mark.slow
def test_runs_with_other_labels_or_without_labels_are_refused(seeds, tmp_path):
    for facts, message in (
        ({"items": "strings"}, "has 0 labels"),
        ({"labels": ["a", "b", "c"]}, "has 3 labels"),
        ({"labels": ["pos", "neg"]}, "has pos first"),
    ):
        folder = tmp_path / message.replace(" ", "_")
        shutil.copytree(seeds[0], folder)
        file = folder / "metrics.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | facts))
        with pytest.raises(UserError, match=message):
            measure([folder], "test")
