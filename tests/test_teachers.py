"""Reviews of data.unlabelled: labeled by finished runs (data.teachers), and trained on with their probabilities."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from omegaconf import OmegaConf

from imdbattn.data.corpus import read_texts
from imdbattn.errors import UserError
from imdbattn.export.folder import portable
from imdbattn.nn.beyond.phrases import count_phrases, log_count_ratios
from imdbattn.nn.ladder import ResidualLayer
from imdbattn.run_folder import open_run
from imdbattn.runs.fit import fit
from imdbattn.runs.score import score_run
from imdbattn.settings.keys import as_dict
from imdbattn.sweep.job import missing
from imdbattn.tasks.reviews import TASK, ReviewClassifier

from .commands import label_texts
from .nets import learner, net, reviews
from .test_phrases import known_by_hand, labelled, phrases_in
from .test_resume import differences

RUNGS = ("mean", "wide")


@pytest.fixture(scope="module")
def teachers(trained, tmp_path_factory):
    """A folder with two finished runs, one that is not finished, and a file."""
    folder = tmp_path_factory.mktemp("teachers")
    for rung in RUNGS:
        shutil.copytree(trained(rung)[0], folder / rung)
    shutil.copytree(trained("residual")[0], folder / "unfinished")
    (folder / "unfinished" / "metrics.json").unlink()
    (folder / "log.txt").write_text("lines\n")
    return folder


@pytest.fixture
def student(settings, small, world, teachers):
    """student(overrides..., teachers=folder): the settings of a run of `distilled`."""

    def get(*overrides, teachers=teachers):
        more = [f"data.teachers={teachers}", f"data.unlabelled={world}/unlabelled.txt", "trainer.max_epochs=1"]
        return settings(*small, "model=distilled", *more, *overrides)

    return get


@pytest.fixture
def own_copy(teachers, tmp_path):
    return shutil.copytree(teachers, tmp_path / "teachers")


def last_texts(world):
    return (world / "unlabelled.txt").read_text().splitlines()


def test_a_review_without_label_gets_the_mean_probabilities_of_the_teachers(student, settings, teachers, world):
    corpus = TASK.prepare(student())
    names, texts = corpus.label_names, last_texts(world)
    expected_UC = np.zeros((len(texts), 2))
    for rung in RUNGS:
        said, _ = label_texts(settings(f"run={teachers / rung}", config="predict"), texts)
        expected_UC += [[one.probabilities[name] / len(RUNGS) for name in names] for one in said]
    assert corpus.added == len(texts) == 60
    found_UC = corpus.targets_NC[-60:]
    np.testing.assert_allclose(found_UC, expected_UC, atol=1e-6)
    assert found_UC.max(1).values.min() < 0.9, "the test's own premise: some are not certain"
    train = corpus.splits["train"]
    assert train.labels[-60:].equal(found_UC.argmax(1))
    assert corpus.targets_NC[:-60].equal(F.one_hot(train.labels[:-60], 2).float())
    assert corpus.facts["unlabelled_reviews"] == 60


def test_labeled_and_held_out_reviews_are_not_changed(student):
    with_teachers = TASK.prepare(student())
    data = OmegaConf.merge(student().data, {"teachers": None, "unlabelled": None})
    plain = TASK.prepare(OmegaConf.merge(student(), {"data": data}))
    count = len(plain.splits["train"])
    for split in ("train", "validation", "test"):
        one, other = plain.splits[split], with_teachers.splits[split]
        assert other.labels[: len(one)].equal(one.labels)
        assert other.ids[: len(one.ids)].equal(one.ids)
    assert len(with_teachers.splits["train"]) == count + 60
    assert read_texts(with_teachers.texts("test")) == read_texts(plain.texts("test"))


@given(st.lists(st.floats(0, 1), min_size=6, max_size=6), st.sampled_from([0.0, 0.1]))
@examples(max_examples=30, deadline=None, derandomize=True)
def test_the_loss_is_the_cross_entropy_with_these_probabilities(settings, chances, smoothing):
    data = reviews(count=6, classes=2)
    targets_NC = torch.tensor([[1 - chance, chance] for chance in chances])
    module = learner(settings("model=mean", f"label_smoothing={smoothing}"), net(settings, "mean", classes=2), 2)
    module.register_buffer("targets_NC", targets_NC)
    module._trainer = type("Trainer", (), {"world_size": 1})()
    order = torch.tensor([4, 0, 5, 2])
    batch = data.batch(order)
    loss = module.training_step(batch, 0)
    logs_BC = module(batch).log_softmax(1)
    smooth_BC = targets_NC[order] * (1 - smoothing) + smoothing / 2
    torch.testing.assert_close(loss, -(smooth_BC * logs_BC).sum(1).mean())


def test_training_uses_the_targets_of_its_own_reviews(student, tmp_path, monkeypatch):
    """Each review that a run trains on has its own row of the targets."""
    corpus, seen = TASK.prepare(student()), {}
    step = ReviewClassifier.training_step

    def recorded(self, batch, index):
        seen.update(zip(batch.rows_B.tolist(), batch.labels_B.tolist(), strict=True))
        assert self.targets_NC.equal(corpus.targets_NC)
        return step(self, batch, index)

    monkeypatch.setattr(ReviewClassifier, "training_step", recorded)
    metrics = fit(student(), tmp_path / "run")
    assert seen == dict(enumerate(corpus.targets_NC.argmax(1).tolist()))
    assert metrics["train_reviews"] == len(seen)
    assert (metrics["teachers"], metrics["unlabelled_reviews"]) == (2, 60)


def test_reviews_without_labels_are_in_every_fold(student):
    cfg = student()
    corpus = TASK.prepare(cfg)
    folds_N = TASK.new(cfg, corpus).folds_N
    assert folds_N[-60:].bincount().tolist() == [6] * 10
    known = len(folds_N) - 60
    for label in (0, 1):
        sizes = folds_N[:known][corpus.splits["train"].labels[:known] == label].bincount()
        assert sizes.max() - sizes.min() <= 1


@given(
    st.lists(st.lists(st.integers(3, 8), max_size=8), min_size=2, max_size=12),
    st.lists(st.floats(0, 1), min_size=12, max_size=12),
)
@examples(max_examples=50, deadline=None)
def test_the_counts_of_phrases_are_expected_ones(texts, chances):
    """Each review counts for a class with its probability; those of its own fold are left out."""
    data, folds = labelled(texts, 2), 2
    fold_N = torch.arange(len(texts)) % folds
    targets_NC = torch.tensor([[1 - chance, chance] for chance in chances[: len(texts)]])
    before_MW, review_M = data.words(1)
    phrases = count_phrases(data.ids.long(), before_MW, review_M, fold_N, targets_NC, 12, 1, folds)
    known = known_by_hand(texts, 2, 1)
    for fold, table_PC in enumerate([phrases.log_counts_PC, *phrases.out_of_fold_KPC], -1):
        counts_CP = torch.zeros(2, len(known), dtype=torch.float64)
        for text, target_C, own in zip(texts, targets_NC, fold_N.tolist(), strict=True):
            for phrase in set(phrases_in(text, 2)) & set(known):
                counts_CP[:, known.index(phrase)] += target_C * (own != fold)
        torch.testing.assert_close(table_PC[1:], log_count_ratios(counts_CP), atol=1e-5, rtol=1e-5)


def test_labels_of_other_unlabeled_reviews_are_not_used(student, tmp_path):
    """With the same cache and teachers, for a file with as many reviews."""
    targets = []
    for word in ("great", "bad"):
        (tmp_path / f"{word}.txt").write_text("".join(f"a {word} film of {name}\n" for name in ("one", "two", "me")))
        cfg = student(f"data.cache_dir={tmp_path}/cache", f"data.unlabelled={tmp_path}/{word}.txt")
        targets.append(TASK.prepare(cfg).targets_NC)
    assert targets[0].shape == targets[1].shape
    assert not targets[0].equal(targets[1])


def test_teachers_label_the_reviews_once(student, own_copy, tmp_path, caplog):
    caplog.set_level("INFO")
    cfg = student(f"data.cache_dir={tmp_path}/cache", teachers=own_copy)

    def labeled():
        caplog.clear()
        corpus = TASK.prepare(cfg)
        return corpus, [rung for rung in RUNGS if f"{rung}\n" in caplog.text or f"{rung} " in caplog.text]

    first, said = labeled()
    assert said == [*RUNGS]
    again, said = labeled()
    assert said == []
    assert again.targets_NC.equal(first.targets_NC)
    shutil.rmtree(own_copy / "wide")
    one, said = labeled()
    assert said == []
    assert not one.targets_NC.equal(first.targets_NC)
    assert one.fingerprints != first.fingerprints, "going on with other labels is refused"
    for file in (tmp_path / "cache" / "labels").glob("*/probabilities.npy"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match=r"the cache is damaged .*delete the folder"):
        labeled()


def test_a_stopped_run_resumes_identically_and_not_with_other_labels(student, own_copy, tmp_path, monkeypatch):
    """Nor do its bits depend on whether the teachers' labels are in the cache."""
    cfg = student("trainer.max_epochs=2", f"data.cache_dir={tmp_path}/cache", teachers=own_copy)
    steps = fit(cfg, tmp_path / "whole")["steps"]
    step = ReviewClassifier.training_step

    def crash(self, batch, index):
        if self.trainer.global_step == steps - 3:
            raise RuntimeError("the machine is gone")
        return step(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(ReviewClassifier, "training_step", crash)
        with pytest.raises(RuntimeError, match="gone"):
            fit(cfg, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    fit(cfg, tmp_path / "run", resume=True)
    assert differences(tmp_path / "whole", tmp_path / "run") == []
    shutil.rmtree(own_copy / "wide")
    before = {file: file.read_bytes() for file in (tmp_path / "other").rglob("*.ckpt")}
    with pytest.raises(UserError, match=r"the runs in data\.teachers are no longer those that"):
        fit(cfg, tmp_path / "other", resume=True)
    assert {file: file.read_bytes() for file in (tmp_path / "other").rglob("*.ckpt")} == before


def test_a_run_records_the_absolute_path_of_its_teachers(student, own_copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(student(teachers="teachers"), tmp_path / "run")
    settings, _ = open_run(str(tmp_path / "run"))
    assert settings.data.teachers == str(own_copy)


def test_a_folder_of_teachers_may_have_any_name(shell, small):
    done = shell("train", *small, "model=distilled", "data.teachers=my,runs (1)=x", "data.unlabelled=u.txt")
    assert done.returncode == 2
    assert "error: data.teachers=my,runs (1)=x cannot be read (No such file or directory): train" in done.stderr


def test_a_finished_run_does_not_need_its_teachers(trained, settings, tmp_path):
    folder, metrics = trained("distilled")
    shutil.copytree(folder, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    text, count = re.subn(r"(?m)^  (teachers|unlabelled): .*", r"  \1: /nowhere", config.read_text())
    assert count == 2
    config.write_text(text)
    found = score_run(settings(f"run={tmp_path}/run", "trainer=cpu", config="evaluate"))
    assert found["accuracy"] == metrics["test_accuracy"]
    label_texts(settings(f"run={tmp_path}/run", config="predict"), ["a lovely film"])


def test_a_resumed_sweep_keeps_a_finished_run(trained, tmp_path):
    folder, _ = trained("distilled")
    settings, _ = open_run(str(folder))
    assert missing(folder, settings) == ""
    (tmp_path / "reviews.csv").write_text(Path(settings.data.path).read_text().replace("film", "movie", 1))
    settings.data.path = str(tmp_path / "reviews.csv")
    assert missing(folder, settings) == "results on the current data"


def test_an_exported_model_names_no_folder_of_the_machine(trained):
    settings, _ = open_run(str(trained("distilled")[0]))
    data = portable(as_dict(settings))["data"]
    assert (data["teachers"], data["unlabelled"]) == ("mean", "unlabelled.txt")


def edited(file, key, value):
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))


def test_a_teacher_with_a_class_outside_imdbattn_needs_trust(student, own_copy, tmp_path, monkeypatch):
    config = own_copy / "wide" / "config.yaml"
    config.write_text(config.read_text().replace("imdbattn.nn.ladder.ResidualLayer", "mypkg.MyLayer"))
    monkeypatch.setitem(sys.modules, "mypkg", SimpleNamespace(MyLayer=ResidualLayer))
    cache = f"data.cache_dir={tmp_path}/cache"  # without the labels of other tests
    with pytest.raises(UserError, match=r"mypkg\.MyLayer is outside imdbattn: add trust=mypkg"):
        TASK.prepare(student(cache, teachers=own_copy))
    assert TASK.prepare(student(cache, "trust=mypkg", teachers=own_copy)).added == 60


REFUSED = {
    "no folder": (
        lambda folder: shutil.rmtree(folder),
        (),
        r"cannot be read \(No such file or directory\)",
    ),
    "no finished run": (
        lambda folder: [(folder / rung / "metrics.json").unlink() for rung in RUNGS],
        (),
        "contains no finished run: train teachers on the same data",
    ),
    "another validation": (
        lambda folder: None,
        ("data.validation_share=0.3",),
        "another validation split, so its training data may",
    ),
    "another test": (
        lambda folder: edited(folder / "wide" / "metrics.json", "test_fingerprint", "0"),
        (),
        "wide has another test split, so its training data may contain reviews of this one: train both on",
    ),
    "other labels": (
        lambda folder: edited(folder / "wide" / "metrics.json", "labels", ["bad", "good"]),
        (),
        "wide has other labels than neg, pos",
    ),
    "another tokenizer": (
        lambda folder: None,
        ("data.tokenizer=whitespace",),
        "has data.tokenizer=ptb, but this run has whitespace: use the same",
    ),
    "no weights": (
        lambda folder: (folder / "wide" / "checkpoints" / "best.ckpt").unlink(),
        (),
        r"wide is not a finished run: it has no checkpoints/best\.ckpt",
    ),
    "damaged weights": (
        lambda folder: (folder / "wide" / "checkpoints" / "best.ckpt").write_bytes(b"PK"),
        (),
        r"best\.ckpt",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsuitable_teachers_are_refused_in_one_line(case, student, own_copy, tmp_path):
    change, overrides, words = REFUSED[case]
    change(own_copy)
    with pytest.raises(UserError, match=words) as error:
        fit(student(*overrides, teachers=own_copy), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not [*(tmp_path / "run").rglob("*.*")]


def test_a_teacher_on_other_vectors_is_refused(student, world, tmp_path):
    lines = (world / "glove.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    with pytest.raises(UserError, match="was trained on vectors with fingerprint"):
        fit(student(f"data.glove.path={tmp_path}/other.txt"), tmp_path / "run")


def test_a_pretrained_encoder_cannot_be_a_teacher(trained, student, tmp_path):
    run, _ = trained("pretrained", "task=masked_words", "trainer.max_epochs=2")
    with pytest.raises(UserError, match="is a run of task=masked_words, which labels no reviews: train teachers"):
        fit(student(teachers=run), tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.unlabelled=hub"], "data.unlabelled has no effect without data.teachers"),
        (["data.teachers=runs/x"], "data.teachers=runs/x has no reviews to label: add data.unlabelled"),
        (["data.teachers=runs/x", "task=masked_words"], "data.teachers has no effect with task=masked_words"),
    ],
)
def test_settings_without_effect_are_refused(settings, overrides, words):
    with pytest.raises(UserError, match=words):
        settings(*overrides)
