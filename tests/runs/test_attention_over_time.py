"""The entropy of attention that a run logs is that of its weights; measuring changes nothing."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imdbattn.errors import UserError
from imdbattn.folders.run import Run, read_curves
from imdbattn.runs.apply import load_predictor
from imdbattn.runs.attention_over_time import measure
from imdbattn.runs.fit import fit
from tests.nets import batch, learner, net
from tests.resuming import saved


def train(settings, small, folder, *overrides):
    fit(settings(*small, "test=false", *overrides), folder)
    return read_curves(folder / "metrics.csv")


@pytest.mark.parametrize("rung", ["residual_heads", "residual_pe_cls", "label_query"])
def test_the_logged_entropies_are_those_of_the_explained_reviews(settings, small, tmp_path, rung):
    curves = train(
        settings, small, tmp_path, f"model={rung}", "trainer.max_epochs=1", "attention_reviews=5"
    )
    predictor = load_predictor(settings(f"run={tmp_path}", config="predict"))[0]
    run = Run(tmp_path)
    texts = run.table("validation_reviews.parquet")["text"]
    answers = run.table("validation_predictions.parquet")
    rows = np.linspace(0, len(texts) - 1, 5).round().astype(int)
    found: dict[str, list[tuple[float, float, bool]]] = {}
    for row in rows:
        weights = (explained := predictor.explain(texts[row])).attention
        right = answers["label"][row] == answers["predicted"][row]
        if weights.cls:
            from_cls = weights.layers[1][0, 0].tolist()
            assert weights.received()["layer 1, <cls>"].tolist() == from_cls
            assert explained.shares_by_attention()["layer 1, <cls>"] == from_cls[1:]
        elif weights.layers:
            of_queries = weights.layers[1].mean((0, 1)).tolist()
            assert weights.received()["layer 1, mean query"].tolist() == pytest.approx(of_queries)
        for name, nats in weights.entropies().items():
            key = name.replace("layer ", "layer").replace(", head ", "_head")
            for number, label in enumerate(run.metrics["labels"], 1):
                key = key.replace(f", {label}", f"_head{number}")
            key = key if "head" in key else f"{key}_head1"
            found.setdefault(key, []).append((nats, nats / math.log(len(weights.keys)), right))
    assert found
    for key, reviews in found.items():
        nats, shares, right = map(np.array, zip(*reviews, strict=True))
        assert curves[f"attention_entropy/{key}"][1] == pytest.approx(nats.mean(), rel=1e-4)
        assert curves[f"attention_share/{key}"][1] == pytest.approx(shares.mean(), rel=1e-4)
        for kind, chosen in (("right", right), ("wrong", ~right)):
            if chosen.any():
                logged = curves[f"attention_share_{kind}/{key}"][1]
                assert logged == pytest.approx(shares[chosen].mean(), rel=1e-4)


def test_measuring_changes_no_weight(settings, small, tmp_path):
    words = ("model=residual_pe", "model.net.layer.dropout=0.2", "trainer.max_epochs=2")
    for count in (0, 7):
        curves = train(settings, small, tmp_path / str(count), *words, f"attention_reviews={count}")
        assert any(name.startswith("attention_") for name in curves) == bool(count)
    one, other = (saved(tmp_path / count)["state_dict"] for count in ("0", "7"))
    assert all(torch.equal(other[name], weight) for name, weight in one.items())


def test_the_penalty_adds_the_mean_entropy_of_each_review(settings):
    model = net(settings, "residual_heads").train()
    texts = [[3, 4, 5], [6], [7, 8], []]
    reviews = batch(model, texts)

    def loss(coefficient: float) -> torch.Tensor:
        module = learner(settings("model=base", f"attention_entropy={coefficient}"), model)
        module.trainer = SimpleNamespace(world_size=1)
        return module.training_step(reviews, 0)

    words_B, entropies_B = [3, 1, 2, 1], []  # an empty review is read as one <pad>
    for row, count in enumerate(words_B):
        alone = batch(model, texts, [row])
        _, attended = learner(settings("model=base"), model).logits_and_attention(alone)
        heads = [
            torch.special.entr(one.weights_BHQK[0, head, query, :count]).sum()
            for one in attended.values()
            for head in range(5)
            for query in range(count)
        ]
        entropies_B.append(torch.stack(heads).mean())
    expected = 0.5 * torch.stack(entropies_B).mean()
    torch.testing.assert_close(loss(0.5) - loss(0.0), expected, rtol=1e-3, atol=1e-5)
    loss(0.5).backward()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_a_penalty_without_attention_is_refused_before_anything_is_written(
    settings, small, tmp_path
):
    with pytest.raises(UserError, match=r"attention_entropy=0\.01: model=mean has no"):
        train(settings, small, tmp_path / "run", "model=mean", "attention_entropy=0.01")
    assert not list((tmp_path / "run").glob("*"))


def test_each_word_of_a_review_of_several_words_is_a_query_of_the_histogram(settings):
    model = net(settings, "residual_heads")
    texts = [[3, 4, 5], [6], [7, 8], []]
    measured = measure(learner(settings("model=base"), model), [batch(model, texts)])
    assert len(measured["layer1", "query_share"]) == 3 + 2
