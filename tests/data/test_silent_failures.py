"""Data that would train without an error and give numbers that say nothing are refused or named."""

import json
import logging
import random

import pytest

import imdbattn
from imdbattn.data.corpus import load_reviews
from imdbattn.errors import UserError
from imdbattn.launch.single_run import summary
from imdbattn.report.comparison_page import report_of
from imdbattn.runs.fit import fit
from tests.world import TRANSLATION

CHINESE = "这部电影很好看我喜欢不无聊失望情节演员糟糕精彩感动"


def test_text_of_which_the_vectors_know_nothing_is_refused_unless_it_is_meant(
    settings, small, tmp_path, caplog
):
    """Reviews without spaces between words, each with a number and a period, which are known."""
    draw = random.Random(0)
    rows = [f"{''.join(draw.choices(CHINESE, k=12))} {n % 10} .,{n % 2}" for n in range(60)]
    (tmp_path / "zh.csv").write_text("text,label\n" + "\n".join(rows) + "\n", "utf-8")
    words = [*small, "model=mean", "trainer.max_epochs=1", f"data.path={tmp_path}/zh.csv"]
    with pytest.raises(
        UserError, match=r"0\.0% of the words .*data\.vectors\.path.*data\.tokenizer"
    ):
        fit(settings(*words), tmp_path / "refused")
    assert not (tmp_path / "refused" / "config.yaml").exists()
    fit(settings(*words, "data.min_known=0"), tmp_path / "meant")
    metrics = json.loads((tmp_path / "meant" / "metrics.json").read_text())
    assert metrics["known_words"] == 0 < metrics["known_tokens"]
    assert "0.0% of the words are known, the others are read as <unk>" in caplog.text


def test_texts_that_occur_several_times_or_are_omitted_are_reported_by_every_run(
    data_settings, small, tmp_path, caplog
):
    more = {"train": ["test film number 3,1", "test film number 4,0"]}
    more["test"] = [f"test film number {n},{n % 2}" for n in (3, 3, 8)]
    for split in ("train", "validation", "test"):
        rows = [f"{split} film number {n},{n % 2}" for n in range(20)] + more.get(split, [])
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    words = [*small, f"data.path={tmp_path}", "data.min_known=0"]
    for _ in range(2):  # the second time the texts come from the cache
        caplog.clear()
        with caplog.at_level(logging.INFO):
            facts = load_reviews(data_settings(*words)).facts
        assert "test       23 reviews: 0 11, 1 12" in caplog.text
        assert "2 texts occur several times in test (5 reviews)" in caplog.text
        assert facts["repeated_texts"]["validation"] == {"texts": 0, "reviews": 0}
        assert facts["repeated_texts"]["test"] == {"texts": 2, "reviews": 5}
        assert "omitted 2 training reviews whose text is also in another split" in caplog.text
        assert facts["dropped"] == 2


def test_pairs_whose_target_has_no_spaces_are_refused(settings, tmp_path):
    draw = random.Random(0)
    rows = [f"i see number {n} .\t{''.join(draw.choices(CHINESE, k=8))}" for n in range(80)]
    (tmp_path / "cmn.txt").write_text("\n".join(rows) + "\n", "utf-8")
    cfg = settings(*TRANSLATION, f"data.path={tmp_path}/cmn.txt")
    with pytest.raises(UserError, match=r"of the target symbols.*data\.tokenizer=characters"):
        fit(cfg, tmp_path / "run")


def test_the_share_of_the_largest_class_and_macro_f1_stand_beside_the_accuracy(
    settings, small, tmp_path
):
    rows = [
        f"the film was {('bad', 'good')[n % 20 > 0]} r{n},{int(n % 20 > 0)}" for n in range(200)
    ]
    (tmp_path / "r.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    words = [*small, "model=mean", "trainer.max_epochs=1", f"data.path={tmp_path}/r.csv"]
    metrics = fit(settings(*words), tmp_path / "run")
    assert metrics["test_largest_class"] == 0.95
    lines = "\n".join(summary(metrics, tmp_path / "run"))
    assert f" largest class 95.00 %, macro F1 {100 * metrics['test_macro_f1']:.2f} %" in lines
    (comparison,) = imdbattn.compare(tmp_path / "run").contents
    columns = dict(zip(*report_of(comparison).sections[0].table, strict=True))
    assert columns["largest class of test %"] == "95.0"
    assert columns["test macro F1 %"] == f"{100 * metrics['test_macro_f1']:.1f}"


def test_balanced_weights_of_classes_find_more_of_the_smaller_class(
    settings, small, world, tmp_path
):
    words = [*small, "model=mean", "trainer.max_epochs=1", "optim.lr=0.1"]
    lines = (world / "reviews.csv").read_text().splitlines()
    uneven = [lines[0], *(line for n, line in enumerate(lines[1:]) if n % 2 or n % 6 == 0)]
    (tmp_path / "r.csv").write_text("\n".join(uneven) + "\n")
    words.append(f"data.path={tmp_path}/r.csv")
    plain = fit(settings(*words), tmp_path / "plain")
    balanced = fit(settings(*words, "class_weights=balanced"), tmp_path / "balanced")
    assert balanced["val_recall"][0] > plain["val_recall"][0]
    with pytest.raises(UserError, match=r"class_weights has 3 factors, but there are 2 classes"):
        fit(settings(*words, "class_weights=[1,2,3]"), tmp_path / "wrong")
    assert not [*(tmp_path / "wrong").iterdir()]
