"""Runs of the encoder-decoder have the properties of the ladder's: full folders, exact scores, resuming, sweeps."""

import io
import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from omegaconf import OmegaConf

from imdbattn.data.pairs import PairBatch, prepare
from imdbattn.data.vocabulary import PAD
from imdbattn.errors import UserError
from imdbattn.predict import predict
from imdbattn.runs.fit import fit
from imdbattn.runs.resume import resumed
from imdbattn.runs.score import score_run
from imdbattn.tasks.seq2seq import Seq2SeqModule, Seq2SeqScores
from imdbattn.tasks.seq2seq_predictor import Seq2SeqPredictor

from .commands import label_texts
from .marks import slow_except
from .test_many_processes import TOLD, free_port, start
from .test_resume import differences, stops

SMALL = ["task=seq2seq", "logger=csv", "trainer=cpu", "trainer.enable_progress_bar=false", "threads=1"]
SMALL += ["model.hidden=16", "model.width=8", "optim.lr=0.01", "patience=null", "pictures=false"]
REVERSE = [*SMALL, "data.train=200", "data.validation=40", "data.test=60", "data.lengths=[1,4]", "data.letters=6"]
REVERSE += ["data.batch_tokens=128", "trainer.max_epochs=4"]
TRANSLATION = [*SMALL, "data=translation", "data.limit=300", "trainer.max_epochs=4"]
KINDS = {"reverse": REVERSE, "translation": TRANSLATION}


@pytest.fixture(scope="module")
def ran(settings, tmp_path_factory) -> Callable[..., tuple[Path, dict]]:
    """ran("reverse", overrides...): folder and metrics of a run of that kind, once in this file."""
    runs: dict[tuple[str, ...], tuple[Path, dict]] = {}

    def run(*words: str) -> tuple[Path, dict]:
        if words not in runs:
            folder = tmp_path_factory.mktemp(words[0])
            runs[words] = folder, fit(settings(*KINDS[words[0]], *words[1:]), folder)
        return runs[words]

    return run


@pytest.fixture
def scored(settings) -> Callable[..., dict]:
    """scored(folder, overrides...): what imdbattn.evaluate finds."""

    def score(folder: Path, *overrides: str) -> dict:
        return score_run(settings(f"run={folder}", "trainer=cpu", *overrides, config="evaluate"))

    return score


@pytest.fixture
def said(settings) -> Callable[..., list]:
    """said(folder, texts, overrides...): what imdbattn.predict finds."""

    def found(folder: Path, texts: list[str], *overrides: str) -> list:
        return label_texts(settings(f"run={folder}", *overrides, config="predict"), texts)[0]

    return found


def rows_of(file: Path) -> list[dict]:
    return pq.read_table(file).to_pylist()


def taught(net: torch.nn.Module, source: list[int], target: list[int]) -> float:
    """The cross-entropy of one target, summed: teacher forcing by hand, one pair at a time, without padding."""
    with torch.no_grad():
        logits_1TV = net(torch.tensor([source]), None, torch.tensor([target]))
    return -logits_1TV[0].double().log_softmax(-1)[range(len(target)), target].sum().item()


# --- the run folder and its numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", slow_except(["translation"], KINDS))
def test_a_run_writes_all_files_of_its_folder(ran, kind):
    folder, metrics = ran(kind, "pictures=true")
    assert metrics == json.loads((folder / "metrics.json").read_text())
    assert metrics["items"] == {"reverse": "strings", "translation": "sentences"}[kind]
    assert ("test_bleu" in metrics) == ("val_bleu" in metrics) == (kind == "translation")
    for name in ("learning_curves.png", "attention.png", "attention.html"):
        assert (folder / "pictures" / name).stat().st_size > 500, name
    for split, prefix in (("", "test"), ("validation_", "val")):
        table, texts = rows_of(folder / f"{split}predictions.parquet"), rows_of(folder / f"{split}reviews.parquet")
        assert len(table) == len(texts) == metrics[f"{prefix}_reviews"]
        assert [line["row"] for line in table] == [line["row"] for line in texts]
        for line, text in zip(table, texts, strict=True):
            assert line["label"] == line["references"][0]
            assert line["right"] == (line["predicted"] in line["references"])
            assert line["length"] == len(text["text"].split())
            assert 0 <= line["probability"] <= 1 >= line["label_probability"] >= 0
            if kind == "reverse":
                assert line["references"] == [" ".join(reversed(text["text"].split()))]
        assert metrics[f"{prefix}_accuracy"] == pytest.approx(np.mean([line["right"] for line in table]), abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_over_single_pairs(ran, settings, kind):
    """Nats per symbol, including the end symbol."""
    folder, metrics = ran(kind)
    cfg = settings(*KINDS[kind])
    net, corpus = Seq2SeqPredictor.load(cfg, folder / "checkpoints" / "best.ckpt").net, prepare(cfg.data)
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
    """Pairs of two symbols and of one, found with probability 1/2, 1/4 and 1/8: 1, 2 and 3 bits, on average 2.

    Smoothing gives a share to all eight symbols alike.
    """
    target_BT = torch.tensor([[4, 5], [6, PAD]])
    probability_BT1 = torch.tensor([[1 / 2, 1 / 4], [1 / 8, 1 / 8]])[..., None]
    logits_BTV = (
        ((1 - probability_BT1) / 7).log().repeat(1, 1, 8).scatter(2, target_BT[..., None], probability_BT1.log())
    )
    ones_B = torch.ones(2, dtype=torch.int64)
    batch = PairBatch(ones_B[:, None], ones_B, target_BT, torch.tensor([2, 1]), ones_B, ones_B, 2, 3, False)
    module = Seq2SeqModule(lambda *_: logits_BTV, settings(f"label_smoothing={smoothing}"), {})
    module._trainer = SimpleNamespace(world_size=1)
    alike = -np.mean([(np.log(p) + 7 * np.log((1 - p) / 7)) / 8 for p in (1 / 2, 1 / 4, 1 / 8)])
    expected = (1 - smoothing) * 2 * np.log(2) + smoothing * alike
    assert module.training_step(batch, 0).item() == pytest.approx(expected, rel=1e-6)


def test_an_output_is_correct_if_it_equals_any_reference():
    numbers_N = torch.ones(3)
    references = [["a b", "c"], ["a b", "c"], ["a b", "c"]]
    outputs = Seq2SeqScores(
        torch.arange(3), numbers_N, numbers_N, numbers_N, -numbers_N, ["c", "a b", "a"], references, True
    )
    assert outputs.columns()["right"].tolist() == [True, True, False]
    assert outputs.values()["accuracy"] == pytest.approx(2 / 3)


def test_bleu_of_a_worked_example():
    """Of whole outputs, their words as they are: `<unk>` is one word, which sacrebleu's own tokenizer cuts into three.

    Of 1, 2, 3 and 4 words in a row 8 of 8, 5 of 6, 3 of 4 and 1 of 2 are in a reference, and 8 words stand for 9.
    """
    texts = ["<unk> is here today .", "i <unk> it"]
    references = [["she is here today .", "the <unk> was here"], ["now i <unk> it"]]
    zeros_N = torch.zeros(2)
    found = Seq2SeqScores(torch.arange(2), zeros_N, zeros_N, zeros_N, zeros_N, texts, references, True).values()["bleu"]
    assert found == pytest.approx(100 * np.exp(1 - 9 / 8) * (5 / 6 * 3 / 4 * 1 / 2) ** 0.25, abs=1e-9)


# --- scoring again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_gives_the_numbers_that_training_gave(ran, scored, kind):
    folder, metrics = ran(kind)
    for split, name in (("test", "test"), ("validation", "val")):
        found = scored(folder, f"split={split}")
        for value in ("accuracy", "reviews", "bleu"):
            assert found.get(value) == metrics.get(f"{name}_{value}"), value
        assert found["loss"] == pytest.approx(metrics[f"{name}_loss"], abs=1e-6)
        (file,) = (folder / "evaluations").glob(f"{split}-*.parquet")
        kept = rows_of(folder / {"test": "predictions.parquet"}.get(split, f"{split}_predictions.parquet"))
        assert [line["predicted"] for line in rows_of(file)] == [line["predicted"] for line in kept]


@pytest.mark.slow
def test_evaluation_and_prediction_use_no_dropout_whatever_training_uses(ran, scored, said, tmp_path):
    """Bit for bit, with trained weights."""
    folder, _ = ran("reverse", "model.layers=2")
    found = []
    for share in (0.0, 0.5):
        run = tmp_path / str(share)
        shutil.copytree(folder, run)
        config = OmegaConf.load(run / "config.yaml")
        config.model.dropout = share
        OmegaConf.save(config, run / "config.yaml")
        loss = scored(run)["loss"]
        (table,) = (run / "evaluations").glob("test-*.parquet")
        written = [[(one.output, one.probability) for one in said(run, ["ABCD", "B"], f"beams={n}")] for n in (1, 3)]
        found.append((loss, rows_of(table), written))
    assert found[0] == found[1]


def test_other_lengths_are_scored_with_the_letters_of_training(ran, scored):
    folder, metrics = ran("reverse")
    found = scored(folder, "data.test_lengths=[6,7]")
    assert found["test_set"] == "6 letters, lengths 6 to 7, seed 1"
    assert found["changed"] == {"test_lengths": [6, 7]}
    assert (found["source_symbols"], found["reviews"]) == (metrics["source_symbols"], 60)
    (file,) = (folder / "evaluations").glob("test-*-*.parquet")
    assert {line["length"] for line in rows_of(file)} == {6, 7}


@pytest.mark.slow
def test_another_file_of_pairs_is_scored_as_a_whole(ran, scored, tmp_path):
    """Whatever part of its own file the run was trained on; each source counts once, with all its targets."""
    folder, _ = ran("translation", "data.limit=200")
    lines = [("i am", "je suis"), ("you are", "tu es"), ("you are", "vous êtes")] + [(f"w{n}", "x") for n in range(300)]
    (tmp_path / "mine, all.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in lines))
    found = scored(folder, f"data.path='{tmp_path}/mine, all.tsv'")
    assert found["reviews"] == 302
    assert found["test_set"].endswith("mine, all.tsv: all")
    (file,) = (folder / "evaluations").glob("test-*-*.parquet")
    table = rows_of(file)
    assert [line["row"] for line in table] == [0, 1, *range(3, 303)]
    assert table[1]["references"] == ["tu es", "vous êtes"]


@pytest.mark.parametrize(
    ("kind", "override", "message"),
    [
        ("reverse", "data.path=x.tsv", r"data\.path does not apply to this run"),
        ("reverse", "data.test_lengths=[4,6]", r"must be above the lengths \[1, 4\] that the run was trained on"),
        (
            "reverse",
            "split=validation data.test_lengths=[6,7]",
            "to split=test, not to split=validation: omit",
        ),
        ("translation", "data.test_lengths=[1,2]", r"data\.test_lengths does not apply to this run"),
    ],
)
def test_settings_that_do_not_apply_to_a_run_are_refused_by_name(ran, scored, kind, override, message):
    folder, _ = ran(kind)
    with pytest.raises(UserError, match=message):
        scored(folder, *override.split())


def test_changed_pairs_are_not_scored_as_the_pairs_of_the_run(settings, scored, tmp_path):
    path = tmp_path / "mine.tsv"
    path.write_text("".join(f"w{n % 7} w{n}\tm{n}\n" for n in range(90)))
    words = ["data.min_frequency=1", "trainer.max_epochs=1", f"data.path={path}", "data.limit=null"]
    fit(settings(*TRANSLATION, *words), tmp_path / "run")
    scored(tmp_path / "run")
    path.write_text(path.read_text().replace("m", "n"))
    with pytest.raises(UserError, match="its data have changed"):
        scored(tmp_path / "run")


# --- batches and processes -------------------------------------------------------------------------------------------


UNTRAINED = ("model=seq2seq_attention", "optim.lr=0")  # writes until it is stopped
MODELS = [("model=seq2seq",), ("model=seq2seq_attention",), ("model=seq2seq_bahdanau",), UNTRAINED]


@pytest.mark.slow
@pytest.mark.parametrize("overrides", MODELS, ids=" ".join)
def test_no_result_depends_on_the_size_of_evaluation_batches(ran, scored, tmp_path, overrides):
    folder, metrics = ran("reverse", *overrides)
    shutil.copytree(folder, tmp_path / "run")
    texts = [line["predicted"] for line in rows_of(folder / "predictions.parquet")]
    if overrides == UNTRAINED:
        assert len({len(text) for text in texts}) > 2
    config = tmp_path / "run" / "config.yaml"
    for tokens in (1, 37, 1000):
        config.write_text(re.sub(r"eval_batch_tokens: \d+", f"eval_batch_tokens: {tokens}", config.read_text()))
        found = scored(tmp_path / "run")
        (file,) = (tmp_path / "run" / "evaluations").glob("test-*.parquet")
        assert [line["predicted"] for line in rows_of(file)] == texts
        assert found["loss"] == pytest.approx(metrics["test_loss"], abs=1e-6)
        assert found["accuracy"] == metrics["test_accuracy"]


@pytest.mark.slow
def test_two_processes_give_the_losses_and_results_of_one(tmp_path):
    """With batches of a single string, of which the second process gets none."""
    losses, metrics, predicted = [], [], []
    words = [word for word in REVERSE if word != "trainer=cpu"]
    words += ["trainer.max_epochs=1", "data.train=60", "data.batch_tokens=12", "data.test=61"]
    for trainer in ("cpu", "ddp_cpu"):
        (tmp_path / trainer).mkdir()
        (tmp_path / trainer / "told.py").write_text(TOLD)
        command = [sys.executable, "told.py", f"trainer={trainer}", *words, "hydra.run.dir=run"]
        start(command, tmp_path / trainer, OMP_NUM_THREADS="1", MASTER_PORT=free_port())
        losses.append(json.loads((tmp_path / trainer / "losses.jsonl").read_text()))
        metrics.append(json.loads((tmp_path / trainer / "run" / "metrics.json").read_text()))
        predicted.append(rows_of(tmp_path / trainer / "run" / "predictions.parquet"))
    assert len(losses[0]) > 20
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for name in ("steps", "val_accuracy", "test_accuracy", "test_reviews", "test_fingerprint"):
        assert metrics[0][name] == metrics[1][name], name
    assert metrics[1]["test_loss"] == pytest.approx(metrics[0]["test_loss"], rel=1e-5)
    assert [line["predicted"] for line in predicted[0]] == [line["predicted"] for line in predicted[1]]


# --- resumption ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopping(monkeypatch):
    """stopping(step, how): in that step training gets a signal, or crashes (how=None); stopping(None): never."""
    return stops(monkeypatch, Seq2SeqModule)


LSTM = ("model.cell=lstm", "model.layers=2", "model.dropout=0.2")
STOPS = {
    "in the middle": ("reverse", *LSTM),
    "without attention": ("reverse", "model=seq2seq", "model.dropout=0.2"),
    "words": ("translation", *LSTM, "choose_by=loss"),
}


@pytest.mark.parametrize(
    ("case", "how"),
    [
        ("in the middle", signal.SIGTERM),
        pytest.param("in the middle", None, marks=pytest.mark.slow),
        pytest.param("without attention", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("words", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(ran, settings, stopping, tmp_path, case, how):
    kind, *overrides = STOPS[case]
    reference, metrics = ran(kind, *overrides)
    cfg = settings(*KINDS[kind], *overrides)
    stopping(metrics["steps"] // 2 + 3, how)
    with pytest.raises((SystemExit, RuntimeError)):
        fit(cfg, tmp_path)
    assert not (tmp_path / "metrics.json").exists()
    stopping(None)
    fit(cfg, tmp_path, resume=True)
    assert differences(reference, tmp_path) == []


def test_resume_uses_the_task_and_settings_of_the_run(ran, composed):
    """The command line has the settings of reviews then."""
    for kind in KINDS:
        folder, _ = ran(kind)
        theirs = yaml.safe_load((folder / "config.yaml").read_text())
        assert resumed(composed(), [f"resume={folder}"], folder) == theirs
        for words in (KINDS[kind], ["task=seq2seq"]):
            assert resumed(composed(*words), words, folder) == theirs
        other = composed("logger=none")["logger"]
        assert resumed(composed("logger=none"), ["logger=none"], folder) == theirs | {"logger": other}


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_folder_gives_the_same_output_from_tensors_and_plain_values_only(ran, said, tmp_path, kind):
    folder, metrics = ran(kind)
    texts = {"reverse": ["abc", "F"], "translation": ["I am here!", "thanks"]}[kind]
    for name in ("best", "last"):
        content = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
        assert len(content["hyper_parameters"]["source_symbols"]) == metrics["source_symbols"]
        assert len(content["hyper_parameters"]["target_symbols"]) == metrics["target_symbols"]
    shutil.copytree(folder, tmp_path / "moved")
    (tmp_path / "moved" / "metrics.json").unlink()
    here, there = said(folder, texts), said(tmp_path / "moved", texts)
    assert [(one.output, one.probability) for one in here] == [(one.output, one.probability) for one in there]


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def printed(composed, capsys, monkeypatch) -> Callable[..., str]:
    """printed(folder, overrides..., text=..., typed=...): what the command prints, with `typed` on standard input."""

    def run(folder: Path, *overrides: str, text: str | None = None, typed: str = "") -> str:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(typed.encode()))))
        capsys.readouterr()
        predict(OmegaConf.create(composed(f"run={folder}", *overrides, config="predict")), text)
        return capsys.readouterr().out

    return run


def test_predict_writes_a_line_for_each_source(ran, said, printed, tmp_path):
    """From a file, from standard input with beam search, and from one text."""
    folder, _ = ran("reverse")
    (tmp_path / "in.txt").write_text("ab\nF\n")
    for found, texts, beams in (
        (printed(folder, f"file={tmp_path}/in.txt"), ["ab", "F"], 1),
        (printed(folder, "beams=3", typed="ab\nF\n"), ["ab", "F"], 3),
        (printed(folder, text="ab"), ["ab"], 1),
    ):
        assert found.splitlines() == [
            f"{one.output}  {100 * one.probability:5.1f} %  {text.upper()}"
            for one, text in zip(said(folder, texts, f"beams={beams}"), texts, strict=True)
        ]


@pytest.mark.parametrize(
    "overrides",
    [pytest.param(one, id=" ".join(one), marks=() if one == MODELS[1] else pytest.mark.slow) for one in MODELS],
)
def test_the_output_for_a_source_does_not_depend_on_the_others(ran, settings, overrides):
    folder, _ = ran("reverse", *overrides)
    texts = ["a", "bcdef", "fed", "aaaa", "bc"]
    cfg = settings(f"run={folder}", "beams=4", "explain=true", config="predict")
    together, _ = label_texts(cfg, texts)
    alone = [label_texts(cfg, [text])[0][0] for text in texts]
    assert [one.output for one in together] == [one.output for one in alone]
    assert [one.probability for one in together] == pytest.approx([one.probability for one in alone], rel=1e-4)
    for one in together:
        if one.weights_TS is not None:
            assert one.weights_TS.shape[1] == len(one.source)
            assert one.weights_TS.sum(1) == pytest.approx(1, abs=1e-5)
        else:
            assert overrides == ("model=seq2seq",)


def test_predict_gives_the_outputs_of_the_test(ran, said):
    for kind in KINDS:
        folder, _ = ran(kind)
        table, texts = rows_of(folder / "predictions.parquet"), rows_of(folder / "reviews.parquet")
        found = said(folder, [line["text"] for line in texts])
        assert [" ".join(one.written) for one in found] == [line["predicted"] for line in table]
