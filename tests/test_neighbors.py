"""Vectors of regions: what they are, what they predict, and what a classifier takes from their pretraining."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from imdbattn.data.corpus import prepare
from imdbattn.data.ragged import ragged
from imdbattn.errors import UserError
from imdbattn.nn.beyond.regions import NeighborWords, Regions, RegionVectors
from imdbattn.runs.fit import fit
from imdbattn.runs.score import score_run
from imdbattn.tasks import neighbors
from imdbattn.tasks.build import read_checkpoint
from imdbattn.tasks.reviews import TASK

from .conftest import NEIGHBORS
from .nets import WORDS

SLOTS = torch.arange(3 + WORDS).sub(5).clamp(min=0).int()  # the words 3, 4 and 5 have no vector
REVIEWS = st.lists(st.lists(st.integers(3, WORDS + 2), min_size=1, max_size=9), min_size=1, max_size=4)
SIZES = {"region": st.sampled_from([1, 3, 5]), "reach": st.integers(1, 4)}


def random_net(region: int = 3, reach: int = 2, **options) -> NeighborWords:
    torch.manual_seed(0)
    counts_R = F.pad(torch.randint(1, 99, (int(SLOTS.max()),)), (1, 0))
    return NeighborWords(SLOTS, counts_R, size=6, region=region, reach=reach, sampled=7, **options)


@given(REVIEWS, SIZES["region"])
@examples(max_examples=50, deadline=None)
def test_a_region_is_the_sum_of_the_vectors_of_its_words(reviews, region):
    torch.manual_seed(0)
    part = Regions(SLOTS, 6, region)
    batch = ragged(reviews).batch(torch.arange(len(reviews)))
    found_BTE = part(batch.tokens_BT)
    for review, found_TE in zip(reviews, found_BTE, strict=True):
        for place in range(len(review)):
            words = review[max(place - region // 2, 0) : place + region // 2 + 1]
            rows = [int(SLOTS[word]) for word in words]
            expected = torch.relu(sum(part.table_RE[row] for row in rows if row) + part.bias_E)
            torch.testing.assert_close(found_TE[place], expected)


@given(REVIEWS, SIZES["region"], SIZES["reach"])
@examples(max_examples=50, deadline=None)
def test_the_words_around_are_those_before_and_after_the_region(reviews, region, reach):
    batch = ragged(reviews).batch(torch.arange(len(reviews)), multiple=4)
    found_BTO = random_net(region, reach).around(batch.tokens_BT)
    half = region // 2
    for review, found_TO in zip(reviews, found_BTO.tolist(), strict=True):
        slots = [int(SLOTS[word]) for word in review]

        def slot(place, slots=slots):
            return slots[place] if 0 <= place < len(slots) else 0

        for place, found in enumerate(found_TO[: len(review)]):
            before = [slot(place - half - reach + n) for n in range(reach)]
            assert found == before + [slot(place + half + 1 + n) for n in range(reach)]
        assert not any(map(any, found_TO[len(review) :])), "nothing is predicted from padding"


def test_the_loss_is_that_of_a_softmax_over_the_word_and_the_sampled_words():
    """By hand, in float64: scores are corrected by the log of the expected count of the word in a sample."""
    net = random_net().double()
    tokens_BT = torch.tensor([[8, 9, 3, 10, 11, 0]])
    slots_BTO, sample_S = net.around(tokens_BT), net.sample()
    losses_M, right_M = net(tokens_BT, slots_BTO, slots_BTO > 0, sample_S)
    p_R = net.counts_R.double() / net.counts_R.sum()
    q_R = p_R**0.75 / (p_R**0.75).sum()
    h_BTE, expected, right = net.regions(tokens_BT), [], []
    for _, place, one in (slots_BTO > 0).nonzero().tolist():
        rows = torch.cat([slots_BTO[0, place, one][None], sample_S])
        scores = net.output_RE[rows] @ h_BTE[0, place] - (q_R[rows] * net.sampled).log()
        expected.append(-scores.log_softmax(0)[0])
        right.append(bool((scores[0] > scores[rows != rows[0]]).all()))
    torch.testing.assert_close(losses_M, torch.stack(expected), rtol=1e-5, atol=1e-6)
    assert right_M.tolist() == right
    assert len(expected) == 8


def test_a_word_does_not_compete_with_itself():
    """Each review repeats one word, whose output vector is that of its region: every prediction is right."""
    net = NeighborWords(torch.tensor([0, 0, 0, *range(1, 41)]), torch.tensor([0, *[9] * 40]), size=32, sampled=80)
    with torch.no_grad():
        net.regions.table_RE.copy_(F.normalize(torch.randn(41, 32), dim=1))
        net.output_RE.copy_(200 * net.regions.table_RE)
    tokens_BT = torch.arange(3, 43)[:, None].expand(-1, 7)
    slots_BTO, sample_S = net.around(tokens_BT), net.sample()
    assert 20 < len(sample_S.unique()) < 40, "some words are in the sample, and some are not"
    _, right_M = net(tokens_BT, slots_BTO, slots_BTO > 0, sample_S)
    assert right_M.all()


def test_frequent_words_are_predicted_less_often():
    net = random_net(subsample=0.01)
    p_R = net.counts_R.double() / net.counts_R.sum()
    torch.testing.assert_close(net.share_R[1:].double(), (0.01 / p_R[1:]).sqrt().clamp(max=1), rtol=1e-5, atol=0)
    assert net.share_R[0] == 0, "words without a vector are not predicted"
    assert net.share_R.unique().numel() > 5


def test_classifiers_do_not_change_the_vectors(pretrained, trained):
    before = read_checkpoint(pretrained[0] / "checkpoints" / "best.ckpt", "")["state_dict"]
    after = read_checkpoint(trained("regions")[0] / "checkpoints" / "best.ckpt", "")["state_dict"]
    for name in ("slot_V", "table_RE", "bias_E"):
        old, new = before[f"net.regions.{name}"], after[f"net.context.regions.regions.{name}"]
        torch.testing.assert_close(new, old, atol=0, rtol=0)
    assert before["net.regions.table_RE"].std() > 0.05
    part = RegionVectors(8, Regions(SLOTS, 6, 3))
    assert [name for name, parameter in part.named_parameters() if parameter.requires_grad] == ["resize.weight"]


@pytest.fixture(scope="module")
def pretrained(trained):
    return trained("neighbors", *NEIGHBORS)


def test_only_validation_is_scored_and_the_next_command_is_named(pretrained, shell, small, tmp_path):
    _, metrics = pretrained
    assert metrics["items"] == "neighbors"
    assert not [key for key in metrics if key.startswith("test_") and key not in ("test_set", "test_fingerprint")]
    words = (*NEIGHBORS, "trainer.max_epochs=1", "hydra.run.dir=runs/n")
    done = shell("train", *small, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "python -m imdbattn.train model=regions init=runs/n" in done.stdout


def test_scores_do_not_depend_on_the_batch(settings, small, tmp_path):
    losses = []
    for size in (64, 4096):
        words = (*NEIGHBORS, "trainer.max_epochs=1", f"data.eval_batch_tokens={size}")
        losses.append(fit(settings(*small, *words), tmp_path / str(size))["val_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_it_learns_which_words_occur_together(settings, small, world, tmp_path):
    """Reviews that repeat one word: each word predicts itself."""
    words = [line.split()[0] for line in (world / "glove.txt").read_text().splitlines()[:8]]
    rows = [f"{' '.join(words[row % 8 : row % 8 + 1] * 20)} {row},{('neg', 'pos')[row % 2]}" for row in range(240)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    more = ("model.sampled=3", "model.subsample=1", "trainer.max_epochs=3", "optim.lr=0.03", "embedding_lr=0.03")
    cfg = settings(*small, f"data.path={tmp_path}/reviews.csv", "task=neighbors", *more)
    metrics = fit(cfg, tmp_path / "run")
    assert metrics["val_loss"] < 0.5, metrics


@pytest.mark.slow
def test_a_stopped_classifier_resumes_without_the_pretraining(settings, small, pretrained, tmp_path):
    start = shutil.copytree(pretrained[0], tmp_path / "start")
    cfg = settings(*small, "model=regions", f"init={start}", "trainer.max_epochs=2")
    whole = fit(cfg, tmp_path / "whole")
    fit(cfg, tmp_path / "again")
    shutil.rmtree(start)
    (tmp_path / "again" / "metrics.json").unlink()
    again = fit(cfg, tmp_path / "again", resume=True)
    keys = ("val_loss", "test_loss", "start")
    assert {key: again[key] for key in keys} == {key: whole[key] for key in keys}
    config = f"run={tmp_path}/again"
    assert score_run(settings(config, "trainer=cpu", config="evaluate"))["accuracy"] == whole["test_accuracy"]


def test_any_rung_can_use_the_vectors(settings, small, pretrained):
    cfg = settings(*small, "model=residual", f"init={pretrained[0]}")
    module = TASK.new(cfg, prepare(cfg.data))
    assert module.net.context.regions.regions.region == 5
    assert module.hparams["region"] == 5


@pytest.mark.slow
def test_seeds_can_be_trained_together_with_the_vectors(settings, small, pretrained, shell, tmp_path):
    words = ("model=regions", f"init={pretrained[0]}", "seed=1,2", "seeds_per_process=2", "trainer.max_steps=2")
    words += ("data.padded_lengths=6",)
    done = shell("train", "-m", *small, *words, "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for file in tmp_path.glob("sweep/*/metrics.json"):
        assert json.loads(file.read_text())["steps"] == 2
    assert len(list(tmp_path.glob("sweep/*/metrics.json"))) == 2


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["task=neighbors", "model=wide"], "task=neighbors and model=neighbors must be used together"),
        (["model=neighbors"], "task=neighbors and model=neighbors must be used together"),
        (["task=neighbors", "model.region=4"], "model.region=4 must be an odd number of at least 1"),
        (["task=neighbors", "model.subsample=0"], "model.subsample=0 must be greater than 0"),
        (["task=neighbors", "model.words=1"], "model.words=1 must be greater than or equal to 2"),
        (["task=neighbors", "init=runs/x"], "init has no effect with task=neighbors: set init=null"),
        (["task=neighbors", "data.teachers=runs/x"], "data.teachers has no effect with task=neighbors"),
        (["task=neighbors", "choose_by=bleu"], "choose_by=bleu"),
    ],
)
def test_settings_without_effect_are_refused(settings, overrides, words):
    with pytest.raises(UserError) as error:
        settings(*overrides)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["init=nowhere"], "nowhere is not a folder with a finished run: train one, task=neighbors"),
        (["init={mean}"], "has another shape: its "),
        (["init={pretrained}", "data.validation_share=0.4"], "has another validation split, so its training data may"),
        (["init={pretrained}", "data.glove.path={other}"], "was trained on vectors with fingerprint"),
    ],
)
def test_an_unsuitable_pretraining_is_refused_in_one_line(
    overrides, words, pretrained, trained, settings, small, world, tmp_path
):
    lines = (world / "glove.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    names = {"mean": trained("mean")[0], "pretrained": pretrained[0], "other": tmp_path / "other.txt"}
    cfg = settings(*small, "model=regions", *(one.format(**names) for one in overrides))
    with pytest.raises(UserError) as error:
        fit(cfg, tmp_path / "run")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_words_that_are_never_predicted_are_refused(settings, small, tmp_path):
    with pytest.raises(UserError, match=r"model\.subsample=1e-12 leaves no word of these reviews to predict"):
        fit(settings(*small, "task=neighbors", "model.subsample=0.000000000001"), tmp_path)


def test_unlabeled_reviews_are_added_to_training(settings, small, world):
    more = neighbors.TASK.prepare(settings(*small, "task=neighbors", f"data.unlabelled={world}/unlabelled.txt"))
    assert more.added > 0
    assert more.items == "neighbors"
