"""Several seeds trained together in one process give the same runs as separate training."""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from lightning.pytorch.callbacks import Timer

from imdbattn.data.ragged import ragged
from imdbattn.data.sampling import Batches
from imdbattn.errors import UserError
from imdbattn.nn.ladder import PlainLayer
from imdbattn.runs.fit import fit
from imdbattn.seeds.fit import StackedBatches, fit_seeds
from imdbattn.seeds.stack import SeedStack
from imdbattn.settings.keys import BEYOND, RUNGS
from imdbattn.sweep.job import jobs_of
from imdbattn.tasks.learner import parameter_groups
from imdbattn.tasks.review_predictor import batch_options
from tests.nets import learner, net, reviews

from .marks import slow_except

SEEDS = (1, 2, 3)
QUICK = ("mean", "residual_pe_cls")
SPEED = ["train/tokens_per_s", "train/epoch_seconds"]


@pytest.fixture
def together(settings, small, tmp_path):
    def train(*overrides, seeds=SEEDS):
        """Folders of the runs trained together."""
        folders = [tmp_path / f"together-{seed}" for seed in seeds]
        words = (*small, "data.padded_lengths=6", "seeds_per_process=3", *overrides)
        fit_seeds([settings(*words, f"seed={seed}") for seed in seeds], folders)
        return folders

    return train


@pytest.fixture
def alone(settings, small, tmp_path):
    def train(seed, *overrides):
        """Folder of the separate run."""
        folder = tmp_path / f"alone-{seed}"
        fit(settings(*small, "data.padded_lengths=6", *overrides, f"seed={seed}"), folder)
        return folder

    return train


def assert_same(one, other, whole_epochs=True):
    """Whether two run folders differ only in speed and rounding.

    whole_epochs: otherwise the speed of seeds trained together is their mean, because each has other reviews.
    """
    assert {f.name for f in one.iterdir()} == {f.name for f in other.iterdir()}
    curves = [pd.read_csv(f / "metrics.csv") for f in (one, other)]
    tokens = [curve[SPEED].prod(axis=1, skipna=False).dropna().tolist() for curve in curves]
    assert tokens[0] == pytest.approx(tokens[1], rel=1e-4 if whole_epochs else 0.1)
    pd.testing.assert_frame_equal(*(curve.drop(columns=SPEED) for curve in curves), rtol=0, atol=1e-5)
    ours, theirs = (json.loads((f / "metrics.json").read_text()) for f in (one, other))
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"train_seconds", "epoch_seconds", "tokens_per_s"}:
        assert ours[name] == (pytest.approx(theirs[name], abs=1e-5) if "loss" in name else theirs[name])
    for table in {f.name for f in one.glob("*predictions.parquet")}:
        ours, theirs = (pd.read_parquet(f / table) for f in (one, other))
        assert ours["row"].equals(theirs["row"])
        assert ours["probability"].to_numpy() == pytest.approx(theirs["probability"].to_numpy(), abs=1e-5)
    ours, theirs = (torch.load(f / "checkpoints/best.ckpt", weights_only=True) for f in (one, other))
    for name in ("state_dict", "hyper_parameters"):
        assert ours[name].keys() == theirs[name].keys()
    settings = [yaml.safe_load((f / "config.yaml").read_text()) for f in (one, other)]
    assert settings[0] | {"seeds_per_process": 1} == settings[1]


@pytest.mark.parametrize("rung", [pytest.param(r, marks=() if r in QUICK else pytest.mark.slow) for r in RUNGS])
def test_each_seed_has_the_losses_of_a_separate_run(together, alone, rung):
    words = (f"model={rung}", "trainer.max_epochs=1")
    for seed, folder in zip((1, 2), together(*words, seeds=(1, 2)), strict=True):
        assert_same(folder, alone(seed, *words))


@pytest.mark.parametrize(
    "words",
    [
        # each seed stops in another epoch, or not at all
        pytest.param(
            ("model=residual", "trainer.max_epochs=12", "patience=1", "choose_by=loss", "optim.lr=0.006"),
            marks=pytest.mark.slow,
        ),
        # rows of its table are updated as LazyAdamW does alone
        pytest.param(
            ("model=tuned", "trainer.max_epochs=2", "model.embedding.mixout=0", "model.dropout=0"),
            marks=pytest.mark.slow,
        ),
        # a gradient that is clipped
        pytest.param(
            ("model=base", "trainer.max_epochs=2", "trainer.gradient_clip_val=0.01", "test=false"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("model=base", "trainer.max_epochs=2", "optim._target_=torch.optim.SGD", "trainer.gradient_clip_val=null"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("model=mean", "trainer.max_epochs=3", "label_smoothing=0.2", "trainer.accumulate_grad_batches=2"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["early stopping", "lazy rows", "clipping", "other optimizer", "accumulated"],
)
def test_each_seed_has_the_losses_of_a_separate_run_with_other_settings(together, alone, words):
    folders, single = together(*words), {seed: alone(seed, *words) for seed in SEEDS}
    for seed, folder in zip(SEEDS, folders, strict=True):
        assert_same(folder, single[seed])
        assert (folder / "predictions.parquet").exists() == ("test=false" not in words)
    if "patience=1" in words:
        assert len({json.loads((folder / "metrics.json").read_text())["epochs"] for folder in folders}) > 1


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("trainer.max_steps=7",), marks=pytest.mark.slow),  # within the first epoch
        ("trainer.max_steps=25", "trainer.limit_train_batches=20"),  # within the second
        ("trainer.max_epochs=3", "trainer.check_val_every_n_epoch=2", "trainer.limit_train_batches=20"),
        ("trainer.max_time=00:00:00:25", "trainer.limit_train_batches=20", "trainer.max_epochs=4"),
    ],
    ids=["max_steps", "max_steps in epoch 2", "epochs without validation", "max_time"],
)
def test_training_together_ends_where_a_separate_run_ends(together, alone, monkeypatch, words):
    steps = iter(range(10**6))  # `Timer` asks once before training, and once after each step
    monkeypatch.setattr(Timer, "time_elapsed", lambda timer, stage=None: 0 if stage else next(steps))
    folders = together("model=mean", *words, seeds=(1, 2))
    for seed, folder in zip((1, 2), folders, strict=True):
        steps = iter(range(10**6))
        assert_same(folder, alone(seed, "model=mean", *words), whole_epochs=False)


def test_dropout_differs_between_seeds(settings):
    """Two seeds with the same weights, in the same batch."""
    cfg = settings("model=residual", "model.dropout=0.5")
    members = [learner(cfg, net(settings, "residual", "model.dropout=0.5")) for _ in range(2)]
    module = SeedStack(members, (1, 2), "accuracy", None).train()
    logits_SBC = module(ragged([[3, 4, 5], [6, 7]]).batch(torch.arange(2)))
    assert not logits_SBC[0].equal(logits_SBC[1])
    logits_SBC = module.eval()(ragged([[3, 4, 5], [6, 7]]).batch(torch.arange(2)))
    torch.testing.assert_close(logits_SBC[0], logits_SBC[1])


@pytest.mark.parametrize(
    ("choose_by", "values", "epochs", "best"),
    [
        ("accuracy", (0.5, 0.6, 0.55, 0.7, 0.65, 0.7, 0.9), 6, 4),  # an equal score is no improvement
        ("loss", (0.5, 0.6, 0.45, 0.7, 0.65, 0.4), 5, 3),
        ("loss", (0.5, 0.4, 0.3), 3, 3),
    ],
)
def test_a_seed_stops_after_as_many_epochs_without_improvement_as_patience(settings, choose_by, values, epochs, best):
    cfg = settings("model=mean")
    module = SeedStack([learner(cfg, net(settings, "mean"))], (7,), choose_by, patience=2)
    (course,) = module.courses
    for epoch, value in enumerate(values):
        module._trainer = SimpleNamespace(current_epoch=epoch, global_step=10 * (epoch + 1))
        module.scores = SimpleNamespace(scores=[SimpleNamespace(values=lambda value=value: {choose_by: value})])
        module.net.head.bias.data.fill_(epoch + 1)
        if not course.stopped:
            module.follow(course, 0, finite=True)
    assert (course.epochs, course.steps, course.stopped) == (epochs, 10 * epochs, epochs < len(values))
    assert course.weights["head.bias"].eq(best).all()


@pytest.mark.parametrize(
    "rung", slow_except(["tuned", "wide"], [r for r in BEYOND if r not in ("pretrained", "regions", "distilled")])
)
def test_models_beyond_the_ladder_train_together(together, rung):
    for folder in together(f"model={rung}", "trainer.max_steps=3", "test=false", seeds=(1, 2)):
        assert json.loads((folder / "metrics.json").read_text())["steps"] == 3


@pytest.mark.parametrize("rung", ["residual_pe", "tuned", "log_counts"])
def test_a_step_never_waits_for_the_device(settings, monkeypatch, rung):
    # Tensors of the device "meta" have no values: whatever reads one on the host raises.
    cfg = settings(f"model={rung}")
    items = reviews(count=40)
    folds_N = torch.zeros(len(items), dtype=torch.int64)
    members = [learner(cfg, net(settings, rung, seed=seed), folds_N=folds_N) for seed in SEEDS]
    module = SeedStack(members, SEEDS, "accuracy", None).to("meta").train()
    lengths = items.lengths
    there = items.to(torch.device("meta"))
    there.__dict__["lengths"] = lengths
    monkeypatch.setattr(torch, "Generator", lambda device: torch.random.default_generator)
    batches = Batches(there, before=batch_options(cfg)["before"], word_dropout=0.5, widths=(64, 100))
    batch = StackedBatches(batches)[[(seed, np.arange(20)) for seed in SEEDS]]
    assert batch.tokens_BT.is_meta
    module.training_step(batch, 0).backward()
    optimizer = module.make_optimizer(parameter_groups(module.net, None))
    for _ in range(2):
        monkeypatch.setattr(torch, "_foreach_norm", lambda parts: [part.norm() for part in parts])  # not for "meta"
        module.configure_gradient_clipping(optimizer, 1.0, "norm")
        optimizer.step()


class InfiniteForSeed2(PlainLayer):
    def __init__(self, width, **settings):
        super().__init__(width, **settings)
        if torch.initial_seed() == 2:
            torch.nn.init.constant_(self.g[0].weight, torch.inf)


@pytest.mark.parametrize("layer", ["InfiniteForSeed2", "NaNForSeed2"])
def test_a_seed_that_diverges_is_named_and_does_not_stop_the_others(together, tmp_path, layer):
    own = f"model.layer._target_={__name__}.{layer}"
    with pytest.raises(UserError, match=r"^seed 2: loss or weights are not finite in epoch 1: try a lower optim\.lr$"):
        together("model=base", "trainer.max_epochs=2", own)
    assert [(tmp_path / f"together-{seed}" / "metrics.json").exists() for seed in SEEDS] == [True, False, True]


def test_a_seed_that_diverges_after_its_last_validation_is_named(together):
    own = f"model.layer._target_={__name__}.NaNForSeed2"
    with pytest.raises(UserError, match=r"^seed 2: loss or weights are not finite in epoch 1: try a lower optim\.lr$"):
        together("model=base", "trainer.max_steps=2", own)


def test_batches_of_arbitrary_lengths_are_refused_on_a_cpu(together):
    with pytest.raises(UserError, match=r"^seeds_per_process=3 needs data\.padded_lengths=6 on a CPU$"):
        together("model=mean", "data.padded_lengths=null")


def test_a_model_that_cannot_be_stacked_is_refused_before_anything_is_written(together, tmp_path):
    own = f"model.layer._target_={__name__}.ReadsAValue"
    with pytest.raises(UserError, match=r"model=base fails .* seeds_per_process=1 trains each seed alone$"):
        together("model=base", own)
    assert not any((tmp_path / f"together-{seed}" / "config.yaml").exists() for seed in SEEDS)


def test_a_setting_that_lightning_refuses_ends_before_anything_is_written(together, tmp_path):
    with pytest.raises(UserError, match=r"^trainer: .*val_check_interval"):
        together("model=mean", "trainer.val_check_interval=100000")
    assert not any((tmp_path / f"together-{seed}" / "config.yaml").exists() for seed in SEEDS)


class NaNForSeed2(PlainLayer):
    """With weights that no loss depends on."""

    def __init__(self, width, **settings):
        super().__init__(width, **settings)
        self.spare = torch.nn.Parameter(torch.full((1,), torch.nan if torch.initial_seed() == 2 else 0.0))


class ReadsAValue(PlainLayer):
    def forward(self, x_BTD, words=None):
        return super().forward(x_BTD, words) * float(self.g[0].bias.sum() < 1e9)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["seeds_per_process=2"], "is for a sweep: add -m and seed=1,2,3,4,5"),
        (["-m", "seeds_per_process=2", "seed=1,2", "compile=aot_eager"], "cannot be combined with compile=aot_eager"),
        *(
            pytest.param(["-m", "seeds_per_process=2", "seed=1,2", word], reason, marks=pytest.mark.slow)
            for word, reason in {
                "trainer.min_epochs=3": "combined with trainer.min_epochs",
                "+trainer.min_steps=9": "combined with trainer.min_steps",
                "trainer=ddp_cpu": "cannot be combined with several devices",
            }.items()
        ),
        (["-m", "seeds_per_process=2", "seed=1,2", "hydra.sweep.subdir=x${seed}"], "omit hydra.sweep.subdir"),
        (["-m", "seeds_per_process=0", "seed=1,2"], "must be greater than or equal to 1"),
    ],
)
def test_incompatible_settings_are_refused_in_one_line(shell, small, tmp_path, words, reason):
    done = shell("train", *small, "model=mean", "data.padded_lengths=6", *words, cwd=tmp_path)
    assert done.returncode
    output = done.stdout + done.stderr
    assert any(re.search(reason, line) for line in output.splitlines())
    assert "Traceback" not in output
    assert not list(tmp_path.rglob("metrics.json"))


@pytest.mark.slow
def test_a_sweep_trains_seeds_of_the_same_settings_in_one_process(shell, small, tmp_path):
    words = (*small, "model=mean", "seed=1,2", "trainer.max_epochs=1", "data.padded_lengths=6", "seeds_per_process=2")
    done = shell("train", "-m", *words, "hydra.sweep.dir=sweep", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^run     .*: (.*)$", done.stdout, re.MULTILINE) == ["seed=1 with seed 2"]
    assert "2 jobs: 2 done" in done.stdout
    for seed in (1, 2):
        (metrics,) = (tmp_path / "sweep").glob(f"mean-s{seed}-*/metrics.json")
        assert json.loads(metrics.read_text())["seed"] == seed


@pytest.mark.slow
def test_seeds_that_fail_together_are_trained_once_more_alone_and_keep_the_reason(shell, small, tmp_path):
    words = (*small, "model=mean", "seed=1,2,3", "trainer.max_epochs=1", "data.padded_lengths=6", "seeds_per_process=3")
    words += ("trainer.val_check_interval=100000", "hydra.sweep.dir=sweep")  # more batches than an epoch has
    done = shell("train", "-m", *words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    runs = re.findall(r"^run     .*: (seed=.*)$", done.stdout, re.MULTILINE)
    assert runs == ["seed=1 with seeds 2, 3", "seed=2", "seed=3"]
    jobs = jobs_of(tmp_path / "sweep")
    assert len(jobs) == 3
    for job in jobs.values():
        assert job["status"] == "failed"
        assert re.match(r"trainer: .*val_check_interval", job["reason"])


@pytest.mark.slow
def test_the_remaining_seeds_get_further_processes_and_each_is_resumed(shell, small, tmp_path):
    sweep = tmp_path / "sweep"
    words = (*small, "model=mean", "seed=1,2,3", "trainer.max_epochs=1", "data.padded_lengths=6")
    words += ("seeds_per_process=2", f"hydra.sweep.dir={sweep}")
    done = shell("train", "-m", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^run     .*: (.*)$", done.stdout, re.MULTILINE) == ["seed=1 with seed 2", "seed=3"]
    assert re.findall(r"^done    mean-s(\d)", done.stdout, re.MULTILINE) == ["1", "2", "3"]
    assert "3 jobs: 3 done" in done.stdout
    folders = {seed: next(sweep.glob(f"mean-s{seed}-*")) for seed in SEEDS}
    for seed, folder in folders.items():
        assert json.loads((folder / "metrics.json").read_text())["seed"] == seed
        assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == seed
    shutil.rmtree(folders[2])
    again = shell("train", "-m", *words, f"resume={sweep}", cwd=tmp_path)
    assert "3 jobs: 1 done, 2 kept" in again.stdout
    assert (folders[2] / "metrics.json").exists()


@pytest.mark.slow
def test_an_ordinary_command_resumes_such_a_run(shell, together, tmp_path):
    folder = together("model=mean", "trainer.max_epochs=1")[1]
    assert "already finished" in shell("train", f"resume={folder}", cwd=tmp_path).stdout
    (folder / "metrics.json").unlink()
    again = shell("train", f"resume={folder}", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads((folder / "metrics.json").read_text())["seed"] == 2
    assert shell("evaluate", f"run={folder}", cwd=tmp_path).returncode == 0
