"""The loss and the learning rate of each step, and the epoch after which training stops."""

import math
from functools import cached_property
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from imdbattn.data.ragged import Batch, ragged_from_lists
from imdbattn.errors import UserError
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from imdbattn.tasks.chosen_metric import checked_metric, metric_of
from imdbattn.tasks.reviews.class_weights import class_weights
from imdbattn.tasks.reviews.module import ReviewClassifier, ReviewScores
from tests.resuming import saved

# Of eight steps. A warm-up of 0.2 is 1.6 steps, rounded to two: 1/3, 2/3, then 1 - k/6 or (1 +
# cos(k pi / 6)) / 2.
SHARES = {
    ("cosine", 0.2): [0.333333, 0.666667, 1, 0.933013, 0.75, 0.5, 0.25, 0.066987],
    ("linear", 0.2): [0.333333, 0.666667, 1, 0.833333, 0.666667, 0.5, 0.333333, 0.166667],
    ("none", 0.2): [0.333333, 0.666667, 1, 1, 1, 1, 1, 1],
    ("cosine", 0.0): [1, 0.961940, 0.853553, 0.691342, 0.5, 0.308658, 0.146447, 0.038060],
    ("cosine", 1.0): [1 / 9, 2 / 9, 3 / 9, 4 / 9, 5 / 9, 6 / 9, 7 / 9, 8 / 9],
}


@pytest.mark.parametrize("factor", [None, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_every_review_has_the_weight_of_its_class_in_the_training_loss(settings, smoothing, factor):
    """Labels of probability 1/2 and 1/8: 1 and 3 bits. Smoothing gives the other a tenth.

    factor: the weight of the second class; None: there are no weights.
    """
    logits_BC = torch.tensor([[1 / 2, 1 / 2], [7 / 8, 1 / 8]]).log()
    labels_B = rows_B = lengths_B = torch.tensor([0, 1])
    rows_B1 = rows_B[:, None]
    batch = Batch(rows_B1, rows_B1, lengths_B, labels_B, rows_B, global_count=2)
    weights_C = None if factor is None else torch.tensor([1.0, factor])
    cfg = settings(f"label_smoothing={smoothing}")
    module = ReviewClassifier(lambda *_: logits_BC, cfg, {}, weights_C=weights_C)
    module.trainer = SimpleNamespace(world_size=1)
    second = (1 - smoothing / 2) * math.log(8) + smoothing / 2 * math.log(8 / 7)
    expected = (math.log(2) + (factor or 1) * second) / 2
    own = (math.log(2) + math.log(8)) / 2
    assert module.training_step(batch, 0).item() == pytest.approx(expected, rel=1e-6)
    scores = ReviewScores(rows_B, labels_B, lengths_B, logits_BC)
    assert scores.metrics == {"accuracy": 0.5, "loss": pytest.approx(own, rel=1e-6)}


def test_balanced_weights_of_classes_are_those_of_scikit_learn():
    labels_N = np.array([0] * 6 + [1] * 3 + [2])
    train = ragged_from_lists([[3]] * len(labels_N), labels_N)
    corpus = SimpleNamespace(label_names=["a", "b", "c"], splits={"train": train})
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    expected = sklearn.compute_class_weight("balanced", classes=np.arange(3), y=labels_N)
    assert class_weights("balanced", corpus).tolist() == pytest.approx(expected.tolist())


EIGHT_STEPS = ("trainer.max_epochs=2", "trainer.limit_train_batches=4", "optim.lr=0.004")


@pytest.mark.parametrize(("decay", "warmup"), SHARES)
def test_each_step_has_the_share_of_the_table(settings, decay, warmup):
    cfg = settings("model=mean", f"warmup={warmup}", f"decay={decay}")
    module = ReviewClassifier(torch.nn.Identity(), cfg, {"vectors": ""})
    found = [module.lr_factor(step, 8) for step in range(8)]
    assert found == pytest.approx(SHARES[decay, warmup], abs=1e-6)


def test_matrices_vectors_and_other_weights_have_their_own_rates_in_each_step(
    small, settings, monkeypatch, tmp_path
):
    """In two epochs of four steps."""
    rates, train = [], ReviewClassifier.training_step

    def training_step(self, *arguments):
        rates.append([group["lr"] for group in self.trainer.optimizers[0].param_groups])
        return train(self, *arguments)

    monkeypatch.setattr(ReviewClassifier, "training_step", training_step)
    words = [*EIGHT_STEPS, "model=residual", "model.net.layers=1", "optim.matrix_lr=0.03"]
    words += ["model.embedding.trainable=true", "embedding_lr=0.5"]
    fit(settings(*small, *words, "warmup=0.2", "decay=cosine"), tmp_path)
    shares = SHARES["cosine", 0.2]
    expected = [[0.004 * share, 0.03 * share, 0.5 * share] for share in shares]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor(expected), rtol=1e-5, atol=1e-9)


LBFGS = ("optim=adamw", "optim._target_=torch.optim.LBFGS", "~optim.weight_decay")


@pytest.mark.parametrize(("batches", "optimizer"), [(1, ()), (2, ()), (1, LBFGS)])
def test_loss_and_learning_rate_are_logged_every_few_steps(
    small, settings, tmp_path, batches, optimizer
):
    """batches: of each of six steps. LBFGS computes the loss of a batch several times."""
    words = ["trainer.max_epochs=1", "decay=linear", "warmup=0", "model=mean", "optim.lr=0.006"]
    words += [*optimizer]
    words += [f"trainer.accumulate_grad_batches={batches}"]
    words += [f"trainer.limit_train_batches={6 * batches}"]
    for every in (2, 6):
        run = tmp_path / str(every)
        fit(settings(*small, *words, f"trainer.log_every_n_steps={every}"), run)
        table = pd.read_csv(run / "metrics.csv")
        rows = table[table["train/loss_step"].notna()]
        steps = range(every, 7, every)
        assert rows["step"].tolist() == [*steps]
        rates = [0.006 * (1 - (step - 1) / 6) for step in steps]
        assert rows["train/lr_step"].tolist() == pytest.approx(rates)
    # of all six steps, as over the epoch
    assert rows["train/loss_step"].item() == pytest.approx(table["train/loss"].dropna().item())


def test_training_without_a_number_of_steps_is_one_line(small, settings, tmp_path):
    words = ["trainer.max_epochs=null", "+trainer.max_time=00:00:00:03"]
    with pytest.raises(UserError, match=r"set trainer\.max_epochs"):
        fit(settings(*small, "model=mean", *words), tmp_path)


@pytest.mark.parametrize("name", ["macro_f1", "own_metric.rank"])
def test_a_metric_chooses_the_epoch_and_reaches_the_results(
    small, settings, own_module, tmp_path, name
):
    own_module(
        "own_metric",
        "def rank(labels, probabilities):\n"
        "    assert probabilities.shape == (len(labels), 2)\n"
        "    return -abs(probabilities[labels == 1, 1].mean() - 0.5)\n",
    )
    words = ["model=mean", "trainer.max_epochs=3", "logger=csv", f"choose_by={name}"]
    metrics = fit(settings(*small, *words), tmp_path / "run")
    short = name.rpartition(".")[2]
    log = pd.read_csv(tmp_path / "run" / "metrics.csv")[f"val/{short}"].dropna()
    assert len(log) == 3
    assert metrics[f"val_{short}"] == pytest.approx(log.max(), abs=1e-6)
    table = pq.read_table(tmp_path / "run" / "predictions.parquet").to_pydict()
    labels, probabilities = np.array(table["label"]), np.array(table["probabilities"])
    function = metric_of(name, "choose_by")
    assert metrics[f"test_{short}"] == pytest.approx(function(labels, probabilities), abs=1e-6)
    again = settings(f"run={tmp_path / 'run'}", "trust=own_metric", config="evaluate")
    assert evaluate_run(again)[short] == metrics[f"test_{short}"]


def test_a_metric_of_ones_own_replaces_no_other_value_of_a_split(small, settings, tmp_path):
    metrics = fit(settings(*small, "model=mean", "trainer.max_epochs=1"), tmp_path)
    names = [key.removeprefix("test_") for key in metrics if key.startswith("test_")]
    assert "fingerprint" in names
    for name in names:
        with pytest.raises(UserError, match="choose another name than accuracy"):
            checked_metric(f"builtins.{name}", "choose_by")


def test_a_metric_of_ones_own_that_is_not_a_number_is_named(small, settings, own_module, tmp_path):
    """Early stopping would otherwise end the training after an epoch without a word."""
    own_module("no_number", "def rank(labels, probabilities):\n    return float('nan')\n")
    words = ["model=mean", "trainer.max_epochs=2", "choose_by=no_number.rank"]
    with pytest.raises(UserError, match="choose_by: rank is NaN or infinite for 24 texts"):
        fit(settings(*small, *words), tmp_path / "run")


@pytest.mark.parametrize(
    ("choose_by", "patience", "epochs"),
    [("accuracy", 2, 4), ("accuracy", "null", 12), ("loss", 2, 4)],
)
def test_training_stops_after_patience_epochs_without_improvement(
    small, settings, monkeypatch, tmp_path, choose_by, patience, epochs
):
    """By the value that chooses the epoch; an equal value is no improvement."""
    chosen, other = [5, 6, 6, 5, 7, 7, 6, 6, 6, 5, 5, 5], list(range(12))
    if choose_by == "loss":
        chosen = [-value for value in chosen]
    else:
        other = [-value for value in other]
    names = (choose_by, {"accuracy": "loss", "loss": "accuracy"}[choose_by])
    values = zip(map(float, chosen), map(float, other), strict=True)
    course = iter([dict(zip(names, one, strict=True)) for one in values])

    class Scores(ReviewScores):
        @cached_property
        def metrics(self) -> dict[str, float]:
            return next(course, dict.fromkeys(names, 0.0))

    monkeypatch.setattr("imdbattn.tasks.reviews.module.ReviewScores", Scores)
    words = ["model=mean", "trainer.max_epochs=12", "trainer.limit_train_batches=1", "test=false"]
    words += [f"choose_by={choose_by}", f"patience={patience}"]
    assert fit(settings(*small, *words), tmp_path)["epochs"] == epochs
    best = saved(tmp_path, "best")["epoch"]
    assert best == (1 if epochs < 5 else 4), "the first of the best epochs is kept"


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_the_norm_of_the_gradient_is_kept_as_it_was_before_clipping(settings, precision):
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    module = ReviewClassifier(torch.nn.Identity(), settings("model=mean"), {"vectors": ""})
    module.trainer = SimpleNamespace(precision=precision)
    module.configure_gradient_clipping(torch.optim.SGD([weight], 0.1), 1.0)
    torch.testing.assert_close(torch.stack(module.gradient_norms), torch.tensor([5.0]))
    torch.testing.assert_close(weight.grad, torch.tensor([0.6, 0.8]))
    module.gradient_norms.append(torch.tensor(1.0))
    logged: dict[str, torch.Tensor] = {}
    module.epoch_sums, module.epoch_means = [torch.ones(3)], dict
    module.log_dict = lambda values, **_: logged.update(values)
    module.on_train_epoch_end()
    assert logged == {"train/gradient_norm": 3.0, "train/gradient_norm_max": 5.0}
    assert not [*module.gradient_norms, *module.epoch_sums], "of one epoch"
    module.clip_gradients = lambda *arguments: logged.update(lightning=arguments)
    module.configure_gradient_clipping(None, 1.0, "value")
    assert logged["lightning"] == (None, 1.0, "value")
