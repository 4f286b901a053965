"""What makes training fast changes no loss, and never waits for a device."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.textbook import TextbookNet, collate
from imdbattn.data.phrases import with_words_before
from imdbattn.data.plans import BatchPlan
from imdbattn.data.ragged import BatchMaker, BatchOptions, Ragged, ragged_from_lists
from imdbattn.nn import fast
from imdbattn.nn.fast import blocked_attention, uses_onednn
from imdbattn.nn.scores import sequence_mask
from imdbattn.runs import environment
from imdbattn.runs.fit import fit
from imdbattn.tasks import data_module
from tests.marks import slow_except
from tests.models import BEYOND, RUNGS
from tests.nets import WIDTH, WORDS, learner, net
from tests.resuming import saved

STEPS, CLASSES = 20, 2


@pytest.fixture
def onednn():
    """oneDNN's products where they are exact; torch's own again afterwards."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield environment.use_onednn()
    torch.backends.mkldnn.matmul.fp32_precision = before


@pytest.fixture(scope="module")
def reviews() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 2 + WORDS, rng.integers(1, 150)).tolist() for _ in range(16 * STEPS)]


def copied(ours: torch.nn.Module, scale: float) -> TextbookNet:
    """The textbook's net with our weights."""
    theirs = TextbookNet(WIDTH, CLASSES, scale, 512)
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        for name in ("query", "key", "value"):
            getattr(other.attention, name).load_state_dict(getattr(mine.f, name).state_dict())
        other.norm.load_state_dict(mine.norm.state_dict())
        other.linear.load_state_dict(mine.g[0].state_dict())
    theirs.head.load_state_dict(ours.head.state_dict())
    return theirs


def test_twenty_steps_have_the_losses_of_the_textbook(settings, reviews, onednn):
    ours = net(settings, "residual_pe", classes=CLASSES).train()
    torch.nn.init.zeros_(ours.embedding.unk_D)
    ours.embedding.unk_D.requires_grad_(False)  # the textbook learns no vector for unknown words
    theirs = copied(ours, settings("model=residual_pe").model.net.positions.scale)
    labels = np.random.default_rng(1).integers(0, CLASSES, len(reviews))
    batches = BatchMaker(ragged_from_lists(reviews, labels), BatchOptions(pad_to=16))
    table_VD = ours.embedding(torch.arange(2 + WORDS)[None])[0].detach()
    pad = collate(table_VD, None)
    optimizers = [
        torch.optim.AdamW(n.parameters(), lr=0.003, fused=fused)
        for n, fused in ((ours, True), (theirs, False))
    ]
    for step in range(STEPS):
        index = np.arange(16 * step, 16 * (step + 1))
        batch = batches.of_items(index)
        x_BTD, mask_BT, labels_B = pad([(reviews[i], labels[i]) for i in index])
        assert batch.tokens_BT.shape[1] % 16 == 0
        losses = (
            F.cross_entropy(ours(batch), batch.labels_B),
            F.cross_entropy(theirs(x_BTD, mask_BT), labels_B),
        )
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("heads", [1, 3])
def test_blocked_attention_has_the_values_and_gradients_of_the_kernel_of_torch(monkeypatch, heads):
    monkeypatch.setattr(fast, "CACHE_SCORES", 7 * 9 * 2)  # two of ten reviews fit, times heads
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(5, heads, n, 4, dtype=torch.float64, requires_grad=True) for n in (7, 9, 9)
    )
    mask = sequence_mask(torch.tensor([9, 4, 1, 8, 9]), 9)[:, None, None]
    found = blocked_attention(q, k, v, mask, 0.3)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), (q, k, v)) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_training_runs_without_the_private_function_of_torch(
    settings, small, onednn, monkeypatch, tmp_path
):
    words = (*small, "model=residual_pe", "trainer.max_epochs=1", "pictures=false")
    losses = []
    for folder in ("with", "without"):
        metrics = fit(settings(*words), tmp_path / folder)
        losses.append(metrics["test_loss"])
        assert environment.use_onednn() <= (folder == "with")
        monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)


def test_onednn_is_not_used_where_its_products_are_not_as_exact_as_float32(monkeypatch, onednn):
    matmul = torch.backends.mkldnn.matmul
    matmul.fp32_precision = "none"
    monkeypatch.setattr(environment, "product_error", lambda: 1e-3)  # the error of bfloat16
    assert not environment.use_onednn()
    assert matmul.fp32_precision == "none"
    assert not uses_onednn()
    matmul.fp32_precision = "bf16"
    assert uses_onednn()


@pytest.mark.parametrize("rung", slow_except(["residual_pe_cls", "wide"], [*RUNGS, *BEYOND]))
def test_a_training_step_never_waits_for_the_device(settings, reviews, rung, monkeypatch):
    # Tensors of the device "meta" have no values: whatever reads one on the host raises.
    cfg = settings(f"model={rung}", "model.embedding.trainable=true")
    whole = ragged_from_lists(reviews)
    if cfg.model.phrases:
        whole = with_words_before(whole, cfg.model.phrases.longest)
    built = net(settings, rung, "model.embedding.trainable=true")
    ratios_MF = torch.zeros(len(whole.ids), 3 * 3) if cfg.model.phrases else None
    module = learner(cfg, built, ratios_MF=ratios_MF)
    if rung == "distilled":
        module.register_buffer("targets_NC", torch.rand(len(reviews), 3))
    module.to("meta").train()
    assert len(whole.lengths) == len(reviews)  # read once, before
    there = whole.to(torch.device("meta"))
    there.__dict__["lengths"] = whole.lengths
    monkeypatch.setattr(torch, "Generator", lambda device: torch.random.default_generator)
    cut = BatchOptions(max_tokens=512, start_share=0.75, word_dropout=0.5, pad_to=16)
    plans = [BatchPlan(0, np.arange(20)), BatchPlan(1, np.arange(15))]
    batch, _ = BatchMaker(there, cut).make(plans)
    assert isinstance(there, Ragged)
    assert batch.tokens_BT.is_meta
    module.trainer = type("Trainer", (), {"world_size": 1})()
    module.training_step(batch, 0).backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer = module.make_optimizer(module.optimizer_groups())
    for _ in range(2):  # the first step creates the optimizer's state
        optimizer.step()


def test_batches_are_made_ahead_on_a_gpu_and_have_few_lengths(
    settings, small, monkeypatch, tmp_path
):
    words = [*small, "model=residual_pe", "model.net.layers=1", "data.word_dropout=0.3"]
    words += ["trainer.max_epochs=1", "data.batch_tokens=100"]
    fit(settings(*words, f"data.max_padded_lengths={data_module.GPU_LENGTHS}"), tmp_path / "cpu")
    together = []
    make = BatchMaker.make
    monkeypatch.setattr(
        BatchMaker, "make", lambda self, plans: together.append(len(plans)) or make(self, plans)
    )
    monkeypatch.setattr(data_module, "is_on_gpu", lambda items: True)
    fit(settings(*words), tmp_path / "as on a gpu")
    assert max(together) == data_module.GPU_CHUNK
    one, other = (saved(tmp_path / name)["state_dict"] for name in ("cpu", "as on a gpu"))
    assert all(weight.equal(other[name]) for name, weight in one.items())


@pytest.mark.parametrize("rung", slow_except(["wide"], [*RUNGS, *BEYOND]))
def test_every_rung_trains_in_the_precision_of_trainer_gpu(settings, small, world, rung, tmp_path):
    short = ("trainer.precision=bf16-mixed", "trainer.max_steps=2", "test=false", "init=null")
    extra = [f"data.extra={world}/labeled.csv"] if rung == "distilled" else []
    assert fit(settings(*small, f"model={rung}", *short, *extra), tmp_path)["steps"] == 2


@pytest.mark.parametrize("algorithm", [(), ("+trainer.gradient_clip_algorithm=norm",)])
def test_the_norm_of_the_gradient_is_clipped_in_mixed_precision(
    settings, small, tmp_path, algorithm
):
    words = [*small, "model=base", "optim=adamw", "optim._target_=torch.optim.SGD"]
    words += ["optim.weight_decay=0", "embedding_lr=null", "warmup=0", "decay=none", "test=false"]
    words += ["trainer.precision=bf16-mixed", "trainer.max_steps=1"]
    weights = []
    for lr in (0, 1):
        own = [f"optim.lr={lr}", "trainer.gradient_clip_val=0.001", *algorithm]
        fit(settings(*words, *own), tmp_path / str(lr))
        assert "train/gradient_norm" in (tmp_path / str(lr) / "metrics.csv").read_text()
        state = saved(tmp_path / str(lr), "best")["state_dict"]
        weights.append(torch.cat([value.double().flatten() for value in state.values()]))
    assert (weights[1] - weights[0]).norm().item() == pytest.approx(0.001, rel=0.01)
