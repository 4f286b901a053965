"""Finished runs are found once, grouped by seed, and compared on the same test set."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

import imdbattn
from imdbattn.errors import UserError
from imdbattn.report import statistics
from imdbattn.report.comparison_page import sentence
from imdbattn.report.finished_runs import find_runs
from tests.written_runs import (
    LABELS,
    REVIEWS,
    STRINGS,
    TEXTS,
    quick,
    quick_sets,
    write_decoded,
    write_run,
)


def labels_of(result: dict) -> list[str]:
    return [variant["label"] for variant in result["variants"]]


def steps_of(result: dict) -> list[tuple[str, str]]:
    return [(pair["from"], pair["to"]) for pair in result["pairs"]]


@pytest.fixture(scope="module")
def ladder(tmp_path_factory) -> Path:
    """Three rungs with three seeds, in an unusual order."""
    folder = tmp_path_factory.mktemp("runs")
    for model, accuracy in (("residual", 0.9), ("mean", 0.7), ("base", 0.8)):
        for seed in (3, 1, 2):
            write_run(folder / "day" / f"{model}-{seed}", model, seed, accuracy + 0.003 * seed)
    return folder


def test_each_rung_is_compared_with_the_one_that_it_extends(ladder):
    result = quick(ladder)
    assert labels_of(result) == ["mean", "base", "residual"]
    assert steps_of(result) == [("mean", "base"), ("base", "residual")]
    assert [variant["seeds"] for variant in result["variants"]] == [[1, 2, 3]] * 3
    assert (result["split"], result["count"], result["fingerprint"]) == ("test", REVIEWS, "f1")
    assert [pair["verdict"] for pair in result["pairs"]] == ["better", "better"]
    json.dumps(result, allow_nan=False)  # raises no exception


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory) -> dict:
    """The mean, whose first seed is wrong at every fourth review, which has "not", and whose second
    is wrong at every fifth, which has "but"; and base, which is right.
    """
    folder, rows_N = tmp_path_factory.mktemp("by_hand"), np.arange(REVIEWS)
    for seed, wrong in ((1, rows_N % 4 == 0), (2, rows_N % 5 == 0)):
        write_run(folder / f"mean{seed}", "mean", seed, right=~wrong)
        write_run(folder / f"base{seed}", "base", seed, right=wrong | True)
    return quick(folder)


def test_the_accuracy_of_a_variant_is_the_mean_of_its_seeds(by_hand):
    scores = by_hand["variants"][0]["test"]
    assert scores["values"] == [0.75, 0.8]
    assert (scores["mean"], scores["sd"]) == pytest.approx((0.775, 0.05 / 2**0.5))


def test_the_confusion_matrix_is_the_mean_of_the_seeds(by_hand):
    """Every fourth review, and half of every fifth, is of the first class."""
    assert by_hand["variants"][0]["confusion"] == [[130, 70], [20, 180]]


def test_slices_have_the_reviews_with_their_words_and_lengths(by_hand):
    """A review with "but" is a word longer; every twentieth has both words."""
    sizes = {"0 to 5 words": 320, "6 to 6 words": 80, "without “not”": 300, "with “not”": 100}
    assert by_hand["slices"] == sizes | {"without “but”": 320, "with “but”": 80}
    shares = {"0 to 5 words": 280 / 320, "6 to 6 words": 30 / 80}
    shares |= {"without “not”": 270 / 300, "with “not”": 40 / 100}
    shares |= {"without “but”": 280 / 320, "with “but”": 30 / 80}
    assert by_hand["variants"][0]["slices"] == pytest.approx(shares)


def test_a_pair_has_the_difference_and_the_reviews_that_only_one_is_right_at(by_hand):
    (pair,) = by_hand["pairs"]
    assert pair["difference"] == pytest.approx(0.225)
    assert (pair["only_to_right"], pair["only_from_right"]) == (90, 0)


def test_equal_texts_count_once_in_intervals_and_tests(tmp_path):
    """Reviews 200 to 399 have the texts of the first 200, and the same predictions."""
    half, texts = REVIEWS // 2, TEXTS[: REVIEWS // 2] * 2
    rights = {"mean": np.arange(half) % 4 > 0, "base": np.arange(half) % 7 > 0}
    for model, right in rights.items():
        folder = write_run(tmp_path / model, model, right=np.tile(right, 2))
        rows = pa.table({"row": np.arange(REVIEWS) + 7, "text": texts})
        pq.write_table(rows, folder / "reviews.parquet")
    result = quick(tmp_path)
    mean, base = (right[:, None].astype(float) for right in rights.values())
    expected = statistics.estimate_share(mean)
    assert result["variants"][0]["interval"] == pytest.approx(expected.interval)
    (pair,) = result["pairs"]
    expected = statistics.estimate_difference(base, mean)
    assert pair["interval"] == pytest.approx(expected.interval)
    assert pair["p"] == pytest.approx(expected.p)
    assert pair["mcnemar_p"] == pytest.approx(statistics.mcnemar((base - mean)[:, 0]))


def test_a_run_that_is_found_several_times_counts_once(ladder, tmp_path):
    (tmp_path / "latest").symlink_to(ladder / "day" / "mean-1")
    (tmp_path / "round").symlink_to(tmp_path)
    runs, skipped = find_runs(
        [ladder, tmp_path, ladder / "day", ladder / "day" / "mean-1", tmp_path / "latest"]
    )
    assert len(runs) == 9
    assert not skipped
    assert [run.folder.name for run in find_runs([tmp_path])[0]] == ["mean-1"]


def test_of_a_repeated_run_the_newest_counts_and_the_other_is_listed(tmp_path):
    new, old = write_run(tmp_path / "a", data__path="/elsewhere"), write_run(tmp_path / "b")
    os.utime(old / "metrics.json", (1, 1))
    runs, skipped = find_runs([tmp_path])
    assert [run.folder for run in runs] == [new]
    assert skipped[0]["reason"].startswith(f"it was run again in {new}; ")


@pytest.mark.parametrize("listed", [False, True])
def test_equal_runs_of_two_students_are_both_shown_by_folder(tmp_path, listed):
    students = ("ali", "cem")
    for student, accuracy in zip(students, (0.7, 0.8), strict=True):
        write_run(tmp_path / student / "run", accuracy=accuracy)
        write_run(tmp_path / student / "more" / "run", seed=2, accuracy=accuracy)
    folders = [tmp_path / student for student in students] if listed else [tmp_path]
    result = quick(*folders, by_folder=True)
    assert labels_of(result) == ["ali: mean", "cem: mean"]
    assert [variant["seeds"] for variant in result["variants"]] == [[1, 2], [1, 2]]
    assert steps_of(result) == [("ali: mean", "cem: mean")]
    assert result["skipped"] == []
    assert labels_of(quick(*folders)) == ["mean"]


def test_folders_of_two_students_with_one_name_are_shown_by_their_paths(tmp_path):
    folders = [tmp_path / "ali" / "runs", tmp_path / "cem" / "runs"]
    for seed, folder in enumerate(folders):
        write_run(folder / "run", seed=seed)
    result = quick(*folders, by_folder=True)
    assert labels_of(result) == [f"{folder}: mean" for folder in folders]


def not_finite(folder: Path) -> None:
    table = pq.read_table(folder / "predictions.parquet").drop_columns(["probabilities"])
    table = table.append_column("probabilities", pa.array([[np.nan, 0.5]] * REVIEWS))
    pq.write_table(table, folder / "predictions.parquet")


def cut_short(folder: Path) -> None:
    pq.write_table(
        pq.read_table(folder / "predictions.parquet").slice(0, 12), folder / "predictions.parquet"
    )


SKIPPED = {  # how a run folder is damaged -> what the reason says
    "unfinished": (
        lambda folder: (folder / "metrics.json").unlink(),
        "not a result: an unfinished run",
    ),
    "parquet": (
        lambda folder: (folder / "predictions.parquet").write_bytes(b"PAR1"),
        "unreadable: ArrowInvalid",
    ),
    "diverged": (not_finite, "its probabilities are not finite: did training diverge?"),
    "few": (cut_short, "it was scored on other reviews than the other runs (12)"),
}


def test_runs_that_cannot_be_compared_are_listed_with_the_reason(tmp_path):
    write_run(tmp_path / "good")
    for seed, (name, (damage, _)) in enumerate(SKIPPED.items(), start=2):
        damage(write_run(tmp_path / name, seed=seed))
    for no_run in ("good/evaluations", "wandb/run", ".hydra"):
        (tmp_path / no_run).mkdir(parents=True)
        (tmp_path / no_run / "config.yaml").write_text("")
    result = quick(tmp_path, split="test")
    assert [variant["seeds"] for variant in result["variants"]] == [[1]]
    reasons = {Path(run["folder"]).name: run["reason"] for run in result["skipped"]}
    assert reasons.keys() == SKIPPED.keys()
    for name, (_, reason) in SKIPPED.items():
        assert reason in reasons[name]
        assert "\n" not in reasons[name]


# --- test sets ------------------------------------------------------------------------------------


def test_runs_of_different_test_sets_get_separate_tables(ladder, tmp_path):
    write_run(tmp_path / "residual", "residual", fingerprint="f2")
    large = {"metrics": {"test_set": "large"}, "right": np.ones(REVIEWS, bool)}
    write_run(tmp_path / "mean", "mean", fingerprint="f2", **large)
    sets = quick_sets(ladder, tmp_path)
    assert [(of_set["fingerprint"], of_set["test_set"], labels_of(of_set)) for of_set in sets] == [
        ("f1", "small", ["mean", "base", "residual"]),
        ("f2", "large", ["mean", "residual"]),
    ]
    assert sets == [quick(ladder), quick(tmp_path)]
    assert quick(ladder, tmp_path, split="validation")["count"] == REVIEWS


def test_validation_is_compared_if_a_run_has_no_test_predictions(ladder, tmp_path):
    write_run(tmp_path / "tuning", "residual_pe", test=False)
    result = quick(ladder, tmp_path)
    assert (result["split"], result["fingerprint"]) == ("validation", "v1")
    assert result["variants"][-1]["test"] is None
    asked = quick(ladder, tmp_path, split="test")
    assert labels_of(asked) == ["mean", "base", "residual"]
    assert [run["reason"] for run in asked["skipped"]] == ["it has no test predictions"]
    with pytest.raises(UserError, match=r"no run can be compared: .*it has no test predictions"):
        quick(tmp_path, split="test")


# --- variants and pairs ---------------------------------------------------------------------------


def test_a_run_records_the_overrides_that_name_it_also_when_it_is_resumed(small, tmp_path):
    words = ("model=mean", "seed=3", "trainer.max_epochs=1", "+trainer.min_steps=1")
    run = imdbattn.train(*small, *words, folder=tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    before = OmegaConf.load(run.folder / "config.yaml")
    imdbattn.train(f"resume={run.folder}", "pictures=false")
    named = ["data.batch_tokens=256", "data.vectors.dim=10", "trainer.max_epochs=1"]
    named.append("trainer.min_steps=1")
    for config in (before, OmegaConf.load(run.folder / "config.yaml")):
        assert (config.overrides, config.variant) == (named, before.variant)
    other = OmegaConf.to_container(before) | {"warmup": 0.2}
    imdbattn.train(config=other, folder=tmp_path / "other")
    assert OmegaConf.load(tmp_path / "other" / "config.yaml").variant != before.variant


def test_a_variant_is_named_by_the_overrides_that_not_all_runs_have(tmp_path):
    common = {"trainer__max_epochs": 3, "data__max_tokens": 128}
    write_run(tmp_path / "a", "mean", **common)
    own = {"optim__lr": 0.003, "model__score___target_": "imdbattn.nn.scores.Dot"}
    write_run(tmp_path / "b", "residual", **own, **common)
    write_run(tmp_path / "c", "residual", **common)
    for seed in (1, 2):
        facts = {"init_digest": "3a0d2e"}
        run = {"metrics": facts, "init": "/runs/short", **common}
        write_run(tmp_path / f"d{seed}", "residual", seed, **run)
    write_run(tmp_path / "e", "residual", metrics=facts, init="/runs/short", warmup=0.1, **common)
    names = ["mean", "residual", "residual init=short", "residual score=Dot lr=0.003"]
    assert labels_of(quick(tmp_path)) == [*names, "residual warmup=0.1 init=short"]


def test_a_custom_tokenizer_and_a_quoted_path_are_shown_as_they_were_typed(tmp_path):
    write_run(tmp_path / "a", "mean")
    own = {"data__tokenizer": {"_target_": "mypkg.words"}, "data__extra": "'tables/more.csv'"}
    typed = ["data.extra='tables/more.csv'", "data.tokenizer._target_=mypkg.words"]
    write_run(tmp_path / "b", "base", overrides=typed, **own)
    result = quick(tmp_path)
    assert labels_of(result) == ["mean", "base extra=more.csv tokenizer=words"]
    assert "data.tokenizer (ptb, not mypkg.words)" in " ".join(result["remarks"])


def test_additional_texts_whose_path_was_typed_in_two_ways_make_one_variant(tmp_path):
    for seed, path in ((1, "more.csv"), (2, "/tables/more.csv")):
        facts = {"extra_fingerprint": "e1"}
        write_run(tmp_path / f"extra{seed}", "base", seed, metrics=facts, data__extra=path)
        write_run(tmp_path / f"plain{seed}", "base", seed)
    assert sorted(labels_of(quick(tmp_path))) == ["base", "base extra=more.csv"]


def test_variants_with_other_vectors_or_data_are_named_by_their_files(tmp_path):
    files = {"a": "/vectors/one.txt", "b": "/vectors/two.txt"}
    for name, file in files.items():
        facts = {"vectors": f"digest of {name}"}
        write_run(tmp_path / name, metrics=facts, data__vectors__path=file)
    names = ["mean path=one.txt", "mean path=two.txt"]
    assert sorted(labels_of(quick(tmp_path))) == names
    facts = {"train_fingerprint": "t2", "vectors": "digest of b"}
    changed = {"data__vectors__path": files["b"], "data__path": "/other/reviews.csv"}
    write_run(tmp_path / "c", metrics=facts, **changed)
    names = [
        "mean data.path=reviews.csv data.vectors.path=two.txt",
        "mean data.path=somewhere data.vectors.path=one.txt",
        "mean data.path=somewhere data.vectors.path=two.txt",
    ]
    assert sorted(labels_of(quick(tmp_path))) == names


def test_settings_that_differ_without_an_override_are_named_by_the_experiment_or_a_folder(tmp_path):
    write_run(tmp_path / "a")
    # The file of the experiment sets the learning rate.
    write_run(tmp_path / "b", overrides=["experiment=curriculum"], optim__lr=1.0)
    write_run(tmp_path / "c", metrics={"val_fingerprint": "v2"})
    names = ["mean experiment=curriculum", f"mean in {tmp_path}/a", f"mean in {tmp_path}/c"]
    assert sorted(labels_of(quick(tmp_path))) == names


@pytest.mark.parametrize(
    "fact", ["train_fingerprint", "extra_fingerprint", "vectors", "init_digest", "val_fingerprint"]
)
def test_runs_of_other_data_vectors_or_first_weights_are_never_one_variant(tmp_path, fact):
    for seed, value in enumerate(["a", "a", "b"]):
        write_run(tmp_path / str(seed), seed=seed, metrics={fact: value})
    assert sorted(len(variant["seeds"]) for variant in quick(tmp_path)["variants"]) == [1, 2]


def test_variants_are_compared_with_their_rung_and_with_equal_ones_of_the_rung_it_extends(
    tmp_path,
):
    write_run(tmp_path / "mean", "mean")
    for model in ("residual", "base"):
        for layers in (1, 3):
            write_run(tmp_path / f"{model}{layers}", model, model__layers=layers)
    assert set(steps_of(quick(tmp_path))) == {
        ("mean", "base layers=1"),
        ("base layers=1", "base layers=3"),
        ("base layers=1", "residual layers=1"),
        ("residual layers=1", "residual layers=3"),
        ("base layers=3", "residual layers=3"),
    }


def test_the_variant_with_the_fewest_overrides_is_the_one_that_others_are_compared_with(tmp_path):
    write_run(tmp_path / "a", data__word_dropout=0.5, trainer__max_epochs=3)
    write_run(tmp_path / "b", trainer__max_epochs=3)
    write_run(tmp_path / "c", data__word_dropout=0.7, trainer__max_epochs=2)
    assert steps_of(quick(tmp_path)) == [
        ("mean max_epochs=3", "mean word_dropout=0.5 max_epochs=3"),
        ("mean max_epochs=3", "mean word_dropout=0.7 max_epochs=2"),
    ]


def test_a_rung_is_compared_with_a_variant_of_its_parent_on_the_same_data(tmp_path):
    """Only the second variant of base has its tokenizer; the mean has other vectors."""
    write_run(tmp_path / "mean", "mean", metrics={"vectors": "a"})
    for name in ("basic_english", "ptb"):
        own = {} if name == "ptb" else {"data__tokenizer": name}
        write_run(tmp_path / name, "base", metrics={"vectors": "b"}, **own)
    own = {"data__tokenizer": "ptb", "optim__lr": 0.2}
    write_run(tmp_path / "residual", "residual", metrics={"vectors": "b"}, **own)
    result = quick(tmp_path)
    others = ["base tokenizer=basic_english", "residual tokenizer=ptb lr=0.2"]
    assert labels_of(result) == ["mean", "base", *others]
    assert steps_of(result) == [("base", other) for other in others]
    assert result["remarks"] == [
        "base is not compared with mean, which also differs in the word vectors; against= compares"
        " them.",
        "residual tokenizer=ptb lr=0.2 and base also differ in optim.lr (0.1, not 0.2).",
    ]


def test_a_model_with_several_variants_in_one_set_can_be_compared_with_in_another(ladder, tmp_path):
    for lr in (0.2, 0.3):
        write_run(tmp_path / str(lr), "base", fingerprint="f2", optim__lr=lr)
    clear, unclear = quick_sets(ladder, tmp_path, against="base")
    assert steps_of(clear) == [("base", "mean"), ("base", "residual")]
    assert steps_of(unclear) == [("base lr=0.2", "base lr=0.3")]
    choose = 'against=base has several variants; choose one of "base lr=0.2", "base lr=0.3"'
    with pytest.raises(UserError, match=choose):
        quick(tmp_path, against="base")


def test_all_variants_can_be_compared_with_one_in_the_sets_that_have_it(ladder, tmp_path):
    assert steps_of(quick(ladder, against="base")) == [("base", "mean"), ("base", "residual")]
    for model in ("mean", "base", "residual_pe"):
        write_run(tmp_path / model, model, fingerprint="f2")
    sets = quick_sets(ladder, tmp_path, against="residual_pe")
    assert [steps_of(of_set) for of_set in sets] == [
        [("mean", "base"), ("base", "residual")],
        [("residual_pe", "mean"), ("residual_pe", "base")],
    ]
    with pytest.raises(
        UserError, match=r"against=bass is not among the runs; choose one of mean, base, residual"
    ):
        quick(ladder, against="bass")


# --- verdicts -------------------------------------------------------------------------------------


def right_but(first: int, behind: int) -> np.ndarray:
    """All reviews are classified correctly except those in the range."""
    right_N = np.ones(REVIEWS, dtype=bool)
    right_N[first:behind] = False
    return right_N


def set_against(tmp_path, **rights) -> dict:
    """The comparison with `mean`; of each model which reviews it gets right."""
    for model, right_N in rights.items():
        write_run(tmp_path / model, model, right=right_N)
    return quick(tmp_path, against="mean")


def test_the_verdict_uses_the_corrected_p_value(tmp_path):
    """30 against 14 has a p below 0.02, which is above 0.05 as one of five."""
    same, better = right_but(0, 30), right_but(30, 44)
    others = dict.fromkeys(("base_pe", "residual", "residual_pe", "tuned"), same)
    pairs = set_against(tmp_path, mean=same, base=better, **others)["pairs"]
    (pair,) = (pair for pair in pairs if pair["to"] == "base")
    assert pair["verdict"] == "undecided"
    assert pair["p"] < 0.05 < pair["holm_p"]
    assert pair["interval"][0] > 0
    (pair,) = set_against(tmp_path / "alone", mean=same, base=better)["pairs"]
    assert (pair["verdict"], pair["holm_p"]) == ("better", pair["p"])


# --- metrics --------------------------------------------------------------------------------------


COSTS = """
def cost(labels, probabilities):
    wrong = probabilities.argmax(1) != labels
    return -(1 + 4 * labels)[wrong].sum() / len(labels)

def broken(labels, probabilities):
    return float('nan')
"""


def test_runs_are_compared_by_a_function_of_ones_own(ladder, own_module):
    own_module("costs", COSTS)
    result = quick(ladder, metric="costs.cost")
    variant = result["variants"][0]
    tables = [
        pq.read_table(ladder / "day" / f"mean-{seed}" / "predictions.parquet") for seed in (1, 2, 3)
    ]
    wrong = [t["label"].to_numpy() != t["predicted"].to_numpy() for t in tables]
    assert variant["metric"]["values"] == pytest.approx(
        [-((1 + 4 * LABELS) * w).mean() for w in wrong]
    )
    assert variant["interval"][0] < variant["metric"]["mean"] < variant["interval"][1]
    with pytest.raises(UserError, match=r"metric=costs.broken failed: .*it is nan on some"):
        quick(ladder, metric="costs.broken")


# --- details --------------------------------------------------------------------------------------


def test_the_command_compares_the_runs_that_training_wrote(trained, shell, tmp_path):
    runs = tmp_path / "my runs, a=b"
    for rung in ("mean", "residual"):
        shutil.copytree(trained(rung)[0], runs / rung, ignore=shutil.ignore_patterns("checkpoints"))
    done = shell("compare", f"runs={runs}", "against=mean")
    result = json.loads((runs / "comparison" / "comparison.json").read_text())
    assert (labels_of(result), result["environments"][0]["threads"]) == (["mean", "residual"], 1)
    assert result["variants"][1]["test"]["mean"] == trained("residual")[1]["test_accuracy"]
    assert "val/accuracy" in result["variants"][1]["curves"]
    assert sentence(result["pairs"][0]) in " ".join(done.stdout.split())


@pytest.fixture(scope="module")
def by_range(tmp_path_factory) -> Path:
    """Two models on three ranges of lengths, with two seeds; the first is found last."""
    folder = tmp_path_factory.mktemp("decoded")
    for parent, model, further in (("a", "seq2seq_attention", 1.6), ("b", "seq2seq", 0.9)):
        for longest in (10, 20, 5):
            for seed in (1, 2):
                run = folder / parent / f"{longest}-{seed}"
                write_decoded(run, model, seed, further * longest, (1, longest))
    return folder


def test_an_encoder_decoder_is_compared_by_its_exact_outputs(by_range):
    result = quick(by_range)
    variant = result["variants"][4]
    tables = [
        pq.read_table(by_range / "a" / f"10-{seed}" / "predictions.parquet") for seed in (1, 2)
    ]
    right = np.array([table["right"].to_numpy() for table in tables])
    assert (result["items"], result["count"]) == ("strings", REVIEWS)
    assert result["labels"] == variant["confusion"] == []
    assert variant["test"]["values"] == pytest.approx(right.mean(1))
    confidence = [table["probability"].to_numpy() for table in tables]
    assert variant["ece"] == pytest.approx(
        np.mean([statistics.calibration_error(*c) for c in zip(confidence, right, strict=True)])
    )

    lengths = np.array([len(text.split()) for text in STRINGS])
    assert variant["lengths"]["values"][1][4] == pytest.approx(right[1][lengths == 5].mean())


def test_encoder_decoders_are_compared_by_range_of_training_and_each_validation_set(by_range):
    result = quick(by_range)
    ranges = ("lengths=[1, 5]", "lengths=[1, 10]", "lengths=[1, 20]")
    assert labels_of(result) == [
        f"{model} {lengths}" for model in ("seq2seq", "seq2seq_attention") for lengths in ranges
    ]
    trained_on = [variant["trained_on"] for variant in result["variants"]]
    assert trained_on == [[1, 5], [1, 10], [1, 20]] * 2
    assert not result["one_validation"]
    apart = quick_sets(by_range, split="validation")
    counts = {of_set["fingerprint"]: len(of_set["variants"]) for of_set in apart}
    assert counts == {"v5": 2, "v10": 2, "v20": 2}
