"""data.extra adds training texts with labels, with probabilities, or without either."""

import re
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import imdbattn
from imdbattn.data.corpus import read_texts
from imdbattn.errors import UserError
from imdbattn.exports.folder import portable
from imdbattn.folders.run import Run
from imdbattn.launch.job import has_current_results
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from imdbattn.tasks.masked_words.module import MaskedWordData
from imdbattn.tasks.reviews.module import ReviewClassifier, ReviewData
from imdbattn.tasks.reviews.phrases import training_folds
from imdbattn.tasks.task import settings_of
from tests.commands import label_texts
from tests.nets import batch_of, learner, net, reviews


@pytest.fixture(scope="module")
def runs(trained, tmp_path_factory):
    """A folder with two finished runs and a link to one, a pretraining, a run that is not finished,
    and a file.
    """
    folder = tmp_path_factory.mktemp("runs")
    for rung in ("mean", "residual"):
        shutil.copytree(trained(rung)[0], folder / rung)
    pretrained, _ = trained("pretrained", "task=masked_words", "trainer.max_epochs=2")
    shutil.copytree(pretrained, folder / "pretraining")
    (folder / "latest").symlink_to("residual")
    shutil.copytree(
        trained("mean")[0], folder / "unfinished", ignore=shutil.ignore_patterns("metrics.json")
    )
    (folder / "log.txt").write_text("lines\n")
    return folder


@pytest.fixture
def student(settings, small, world):
    """student(overrides..., extra=table): the settings of a run of `distilled`."""

    def get(*overrides, extra=f"{world}/labeled.csv"):
        own = ["model=distilled", f"data.extra={extra}", "trainer.max_epochs=1"]
        return settings(*small, *own, *overrides)

    return get


def held_out(settings, small):
    """Texts of validation and test."""
    plain = ReviewData.read(settings(*small))
    files = [plain.texts_file(split) for split in ("validation", "test")]
    return [text for file in files for text in read_texts(file)]


def test_a_table_that_predict_has_written_gives_the_mean_probabilities_of_the_runs(
    runs, student, settings, shell, world, tmp_path
):
    table = tmp_path / "soft.csv"
    imdbattn.load(runs / "mean").export(tmp_path / "exported")
    day = shutil.copytree(runs, tmp_path / "all" / "day", symlinks=True)
    run = f"run=[{tmp_path}/all,{runs}/./mean,{tmp_path}/exported]"
    done = shell("predict", run, f"file={world}/unlabeled.txt", f"out={table}")
    assert f"mean of 2 runs: {day}/mean, {day}/residual" in done.stderr
    assert f"omitted pretraining: {day}/pretraining\n" in done.stderr
    texts = (world / "unlabeled.txt").read_text().splitlines()
    expected_RUC = []
    for rung in ("mean", "residual"):
        labels, _ = label_texts(settings(f"run={runs / rung}", config="predict"), texts)
        expected_RUC.append([[*map(one.probabilities.get, ("neg", "pos"))] for one in labels])
    corpus = ReviewData.read(student(extra=table))
    found_UC = corpus.targets_NC[-60:]
    np.testing.assert_allclose(found_UC, np.mean(expected_RUC, 0), atol=1e-6)
    assert np.ptp(expected_RUC, 0).max() > 0.05, "the test's own premise: the runs differ"
    train = corpus.splits["train"]
    assert train.labels[-60:].equal(found_UC.argmax(1))
    assert corpus.targets_NC[:-60].equal(F.one_hot(train.labels[:-60], 2).float())
    assert corpus.facts["extra_texts"] == corpus.added == 60


def test_held_out_texts_are_omitted_and_other_splits_are_not_changed(
    student, settings, small, tmp_path, caplog
):
    caplog.set_level("INFO")
    # however it is spaced
    rows = [f"  {text.replace(' ', '   ', 1)} ,pos\n" for text in held_out(settings, small)]
    lines = ["text,label\n", "a lovely film,pos\n", *rows, "a dull film,neg\n"]
    (tmp_path / "more.csv").write_text("".join(lines))
    plain = ReviewData.read(settings(*small))
    more = ReviewData.read(student(extra=tmp_path / "more.csv"))
    assert f"2 training texts; omitted {len(rows)} in validation or test" in caplog.text
    assert more.targets_NC[-2:].tolist() == [[0, 1], [1, 0]]
    for split in ("train", "validation", "test"):
        one, other = plain.splits[split], more.splits[split]
        assert len(other) == len(one) + 2 * (split == "train")
        assert other.labels[: len(one)].equal(one.labels)
        assert other.ids[: len(one.ids)].equal(one.ids)
    assert len(set(more.splits["train"].rows.tolist())) == len(more.splits["train"])


def test_folds_that_omit_other_additional_texts_belong_to_one_cross_validation(student, world):
    folds = [
        ReviewData.read(student("data.folds=2", f"data.fold={fold}", extra=world / "reviews.csv"))
        for fold in (1, 2)
    ]
    held_out = [{*read_texts(fold.texts_file("test"))} for fold in folds]
    assert held_out[0].isdisjoint(held_out[1]), "the test's own premise"
    assert folds[0].facts["extra_fingerprint"] == folds[1].facts["extra_fingerprint"]


REFUSED = {
    "more.txt": ("a film\n", r"more.txt is not one of \.csv"),
    "other.csv": ("text,label\na film,good\n", "row 0 .* has the label good"),
    "fewer.csv": ("text,probability_pos\na film,1\n", "no column 'probability_neg'; it has [^:]*$"),
    "sum.csv": ("text,probability_neg,probability_pos\na,0.5,0.5\nb,0.5,0.502\n", "row 1 "),
    "below.csv": ("text,probability_neg,probability_pos\na,0.5,0.5\nb,-1,2\n", "row 1 "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_with_anything_but_labels_or_probabilities_of_these_classes_is_refused(
    student, tmp_path, name
):
    content, message = REFUSED[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        ReviewData.read(student(extra=tmp_path / name))


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_the_cross_entropy_with_these_probabilities(settings, smoothing, bfloat16):
    """In mixed precision, too, they are not rounded."""
    order = torch.tensor([4, 0, 5, 2])
    batch = batch_of(reviews(count=6, classes=2), order)
    cfg = settings("model=mean", f"label_smoothing={smoothing}")
    module = learner(cfg, net(settings, "mean", classes=2), 2)
    module.register_buffer("targets_NC", torch.rand(6, 2).softmax(1))
    module.trainer = type("Trainer", (), {"world_size": 1})()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        loss = module.training_step(batch, 0)
        logs_BC = module(batch).float().log_softmax(1)
    smooth_BC = module.targets_NC[order] * (1 - smoothing) + smoothing / 2
    torch.testing.assert_close(loss, -(smooth_BC * logs_BC).sum(1).mean())


def test_training_uses_the_targets_of_its_own_reviews(student, tmp_path, monkeypatch):
    """Each review of training has its own row of them; all folds of phrases have some texts."""
    corpus, seen = ReviewData.read(student()), {}
    assert training_folds(corpus, 10)[-60:].bincount().tolist() == [6] * 10
    step = ReviewClassifier.training_step

    def recorded(self, batch, index):
        seen.update(zip(batch.items_B.tolist(), batch.labels_B.tolist(), strict=True))
        assert self.targets_NC.equal(corpus.targets_NC)
        return step(self, batch, index)

    monkeypatch.setattr(ReviewClassifier, "training_step", recorded)
    metrics = fit(student(), tmp_path / "run")
    assert seen == dict(enumerate(corpus.targets_NC.argmax(1).tolist()))
    assert (metrics["train_count"], metrics["extra_texts"]) == (len(seen), 60)


def test_the_label_of_a_repeated_review_does_not_reach_its_ratios(student, world):
    """A text of data.extra that is also a review is counted in the fold of the review."""
    corpus = ReviewData.read(student(extra=world / "reviews.csv"))
    own_N, added_N = training_folds(corpus, 10).split(corpus.added)
    assert added_N.equal(own_N)


def test_a_finished_run_does_not_need_its_table_and_an_export_does_not_name_its_folder(
    trained, settings, tmp_path
):
    folder, metrics = trained("distilled")
    shutil.copytree(folder, tmp_path / "run")
    own = settings_of(Run(folder))
    assert has_current_results(folder, own), "a resumed sweep keeps it"
    assert portable(own.dump())["data"]["extra"] == "labeled.csv"
    config = tmp_path / "run" / "config.yaml"
    text, count = re.subn(r"(?m)^  extra: .*", "  extra: /nowhere.csv", config.read_text())
    assert count == 1
    config.write_text(text)
    found = evaluate_run(settings(f"run={tmp_path}/run", "trainer=cpu", config="evaluate"))
    assert found["accuracy"] == metrics["test_accuracy"]
    label_texts(settings(f"run={tmp_path}/run", config="predict"), ["a lovely film"])


def test_runs_of_other_classes_and_unsuitable_runs_are_refused(
    runs, trained, settings, world, tmp_path
):
    (tmp_path / "r.csv").write_text((world / "reviews.csv").read_text().replace(",neg", ",bad"))
    other, _ = trained("mean", f"data.path={tmp_path}/r.csv", "trainer.max_epochs=1")
    shutil.copytree(runs / "pretraining", tmp_path / "only" / "pretraining")
    cases = {
        other: "has the classes bad, pos, not neg, pos: give other runs",
        runs / "pretraining": "is a run of task=masked_words: train a classifier with the same",
        tmp_path / "only": "only/pretraining is a run of task=masked_words: train a classifier",
        runs / "nowhere": "there is no such file or folder",
    }
    for run, message in cases.items():
        with pytest.raises(UserError, match=message):
            label_texts(settings(f"run=[{runs}/mean,{run}]", config="predict"), ["a film"])


@pytest.mark.parametrize("name", ["train/unsup", "reviews.txt"])
def test_texts_without_labels_are_used_for_pretraining(settings, small, tmp_path, name):
    """Those of a folder like aclImdb/train/unsup, or of a file, in which one is held out."""
    texts = [f"a lovely story number {n} of a dull film" for n in range(12)]
    if name == "reviews.txt":
        lines = [*texts, f"  {held_out(settings, small)[0]} "]
        (tmp_path / name).write_text("\n\n".join(lines) + "\n")
    else:
        (tmp_path / name).mkdir(parents=True)
        for number, text in enumerate(texts):
            (tmp_path / name / f"{number}_0.txt").write_text(text)
    words = [*small, "task=masked_words"]
    plain = MaskedWordData.read(settings(*words))
    more = MaskedWordData.read(settings(*words, f"data.extra={tmp_path / name}"))
    before, after = plain.splits["train"], more.splits["train"]
    assert len(after) == len(before) + 12
    assert more.splits["validation"].ids.equal(plain.splits["validation"].ids)
    assert more.fingerprints != plain.fingerprints, "going on with other reviews is refused"
    assert more.source_key != plain.source_key
