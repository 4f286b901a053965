"""Runs of the encoder-decoder have full folders, exact scores, and resume bit for bit."""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from imdbattn.data.pairs import PairBatch, load_pairs
from imdbattn.data.symbols import PAD
from imdbattn.folders.run_folder import SPLIT_FILES
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from imdbattn.tasks.seq2seq.module import Seq2SeqModule, Seq2SeqScores
from imdbattn.tasks.weights import predictor_of
from tests.marks import slow_except
from tests.resuming import differences, stops
from tests.world import REVERSE, TRANSLATION

KINDS = {"reverse": REVERSE, "translation": TRANSLATION}


@pytest.fixture(scope="module")
def run_of(settings, tmp_path_factory) -> Callable[..., tuple[Path, dict]]:
    """run_of("reverse", overrides...): folder and metrics of a run, once; alone with pictures."""
    runs: dict[tuple[str, ...], tuple[Path, dict]] = {}

    def run(*words: str) -> tuple[Path, dict]:
        if words not in runs:
            folder = tmp_path_factory.mktemp(words[0])
            pictures = f"pictures={str(len(words) == 1).lower()}"
            runs[words] = folder, fit(settings(*KINDS[words[0]], pictures, *words[1:]), folder)
        return runs[words]

    return run


@pytest.fixture
def scored(settings) -> Callable[..., dict]:
    """scored(folder, overrides...): what imdbattn.evaluate finds."""

    def score(folder: Path, *overrides: str) -> dict:
        return evaluate_run(settings(f"run={folder}", "trainer=cpu", *overrides, config="evaluate"))

    return score


def rows_of(file: Path) -> list[dict]:
    return pq.read_table(file).to_pylist()


def taught(net: torch.nn.Module, source: list[int], target: list[int]) -> float:
    """The summed cross-entropy of one target: teacher forcing by hand, without padding."""
    with torch.no_grad():
        logits_1TV = net(torch.tensor([source]), None, torch.tensor([target]))
    return -logits_1TV[0].double().log_softmax(-1)[range(len(target)), target].sum().item()


@pytest.mark.parametrize("kind", slow_except(["translation"], KINDS))
def test_a_run_writes_all_files_of_its_folder(run_of, kind):
    folder, metrics = run_of(kind)
    assert metrics == json.loads((folder / "metrics.json").read_text())
    assert metrics["items"] == {"reverse": "strings", "translation": "sentences"}[kind]
    assert ("test_bleu" in metrics) == ("val_bleu" in metrics) == (kind == "translation")
    for name in ("learning_curves.png", "attention.png", "attention.html"):
        assert (folder / "pictures" / name).stat().st_size > 500, name
    for split, prefix in (("", "test"), ("validation_", "val")):
        table = rows_of(folder / f"{split}predictions.parquet")
        texts = rows_of(folder / f"{split}reviews.parquet")
        assert len(table) == len(texts) == metrics[f"{prefix}_count"]
        assert [line["row"] for line in table] == [line["row"] for line in texts]
        for line, text in zip(table, texts, strict=True):
            assert line["label"] == line["references"][0]
            assert line["right"] == (line["predicted"] in line["references"])
            assert line["length"] == len(text["text"].split())
            assert 0 <= line["probability"] <= 1 >= line["label_probability"] >= 0
            if kind == "reverse":
                assert line["references"] == [" ".join(reversed(text["text"].split()))]
        right = np.mean([line["right"] for line in table])
        assert metrics[f"{prefix}_accuracy"] == pytest.approx(right, abs=1e-12)


@pytest.mark.parametrize("kind", slow_except(["translation"], KINDS))
def test_the_loss_is_the_mean_over_single_pairs(run_of, settings, kind):
    """Nats per symbol, including the end symbol."""
    folder, metrics = run_of(kind)
    cfg = settings(*KINDS[kind])
    net = predictor_of(cfg, folder / "checkpoints" / "best.ckpt").net
    corpus = load_pairs(cfg.data)
    test = corpus.splits["test"]
    sides = [
        [side.ids[a:b].tolist() for a, b in zip(side.offsets[:-1], side.offsets[1:], strict=True)]
        for side in (test.source, test.target)
    ]
    losses = [taught(net, *pair) for pair in zip(*sides, strict=True)]
    assert metrics["test_loss"] == pytest.approx(sum(losses) / sum(map(len, sides[1])), abs=1e-6)
    said = [line["label_probability"] for line in rows_of(folder / "predictions.parquet")]
    assert said == pytest.approx([np.exp(-loss) for loss in losses], rel=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.4])
def test_every_symbol_has_the_same_weight_in_the_training_loss(settings, smoothing):
    """Pairs of two symbols and of one, found with probability 1/2, 1/4 and 1/8: 1, 2 and 3 bits, on
    average 2.

    Smoothing gives a share to all eight symbols alike.
    """
    target_BT = torch.tensor([[4, 5], [6, PAD]])
    probability_BT1 = torch.tensor([[1 / 2, 1 / 4], [1 / 8, 1 / 8]])[..., None]
    others_BTV = ((1 - probability_BT1) / 7).log().repeat(1, 1, 8)
    logits_BTV = others_BTV.scatter(2, target_BT[..., None], probability_BT1.log())
    one_B, lengths_B = torch.ones(2, dtype=torch.int64), torch.tensor([2, 1])
    batch = PairBatch(one_B[:, None], one_B, target_BT, lengths_B, one_B, one_B, 2, 3, False)
    module = Seq2SeqModule(lambda *_: logits_BTV, settings(f"label_smoothing={smoothing}"), {})
    module.trainer = SimpleNamespace(world_size=1)
    alike = -np.mean([(np.log(p) + 7 * np.log((1 - p) / 7)) / 8 for p in (1 / 2, 1 / 4, 1 / 8)])
    expected = (1 - smoothing) * 2 * np.log(2) + smoothing * alike
    assert module.training_step(batch, 0).item() == pytest.approx(expected, rel=1e-6)


def test_bleu_is_that_of_a_worked_example():
    """Of whole outputs, their words as they are: `<unk>` is one word, which sacrebleu's own
    tokenizer cuts into three.

    Of 1, 2, 3 and 4 words in a row 8 of 8, 5 of 6, 3 of 4 and 1 of 2 are in a reference, and 8
    words stand for 9.
    """
    texts = ["<unk> is here today .", "i <unk> it"]
    references = [["she is here today .", "the <unk> was here"], ["now i <unk> it"]]
    zeros_N = torch.zeros(2)
    found = Seq2SeqScores(
        torch.arange(2), zeros_N, zeros_N, zeros_N, zeros_N, texts, references, True
    )
    assert found.metrics["bleu"] == pytest.approx(
        100 * np.exp(1 - 9 / 8) * (5 / 6 * 3 / 4 * 1 / 2) ** 0.25, abs=1e-9
    )
    outputs = replace(found, texts=["the <unk> was here", "it"])  # a second reference
    assert outputs.columns()["right"].tolist() == [True, False]


def test_other_pairs_are_scored_completely_whatever_the_limit_of_training(run_of, scored, tmp_path):
    (tmp_path / "other.tsv").write_text("".join(f"{n}\t{n}\n" for n in range(400)))
    run = shutil.copytree(run_of("translation")[0], tmp_path / "run")
    assert scored(run, f"data.path={tmp_path}/other.tsv")["count"] == 400


@pytest.mark.parametrize("kind", slow_except(["translation"], KINDS))
def test_evaluate_gives_the_numbers_that_training_gave(run_of, scored, kind):
    folder, metrics = run_of(kind)
    for split, name in (("test", "test"), ("validation", "val")):
        found = scored(folder, f"split={split}")
        for value in ("accuracy", "count", "bleu"):
            assert found.get(value) == metrics.get(f"{name}_{value}"), value
        assert found["loss"] == pytest.approx(metrics[f"{name}_loss"], abs=1e-6)
        (file,) = (folder / "evaluations").glob(f"{split}-*.parquet")
        kept = rows_of(folder / SPLIT_FILES[split][0])
        assert [line["predicted"] for line in rows_of(file)] == [line["predicted"] for line in kept]


@pytest.fixture
def stopping(monkeypatch):
    """stopping(step, how): see tests/resuming.py."""
    return stops(monkeypatch, Seq2SeqModule)


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    run_of, settings, stopping, tmp_path
):
    overrides = ("model.net.cell=lstm", "model.net.layers=2", "model.net.dropout=0.2")
    overrides += ("trainer.max_epochs=2",)
    reference, metrics = run_of("reverse", *overrides)
    cfg = settings(*REVERSE, *overrides)
    stopping(metrics["steps"] // 2 + 3, signal.SIGTERM)
    with pytest.raises(SystemExit):
        fit(cfg, tmp_path)
    assert not (tmp_path / "metrics.json").exists()
    stopping(None)
    fit(cfg, tmp_path, resume=True)
    assert differences(reference, tmp_path) == []
