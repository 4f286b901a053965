"""A run folder that is damaged or untrusted gives one line: nothing is deleted, and it is never scored."""

import json
import os
import random
import re
import shutil
import signal
import zipfile
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.runs.fit import fit
from imdbattn.runs.score import score_run
from imdbattn.tasks.reviews import ReviewClassifier

from .commands import label_texts
from .test_nothing_is_lost import contents
from .test_resume import differences, stops


@pytest.fixture(scope="module")
def half(small, settings, tmp_path_factory) -> tuple[DictConfig, Path]:
    """Settings and folder of a run that was stopped in its second epoch."""
    cfg, folder = settings(*small, "model=residual", "trainer.max_epochs=3"), tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        stops(patch, ReviewClassifier)(20, signal.SIGTERM)
        with pytest.raises(SystemExit):
            fit(cfg, folder)
    return cfg, folder


def key_of(node, step):
    """The key that starts with `step`, if there is one."""
    return next((key for key in node if str(key).startswith(str(step))), step) if isinstance(node, dict) else step


def set_at(*path, value=None):
    """A change that sets a value deep in a checkpoint, or removes it (None). A callback is named by its start."""

    def change(content: dict) -> None:
        *above, last = path
        node = content
        for step in above:
            node = node[key_of(node, step)]
        last = key_of(node, last)
        if value is None:
            del node[last]
        else:
            node[last] = value

    return change


def repacked(file: Path, change) -> None:
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, file)


def rewritten(compression: int):
    """The same checkpoint in another zip file."""

    def change(file: Path) -> None:
        with zipfile.ZipFile(file) as archive:
            parts = {part.filename: archive.read(part) for part in archive.infolist()}
        with zipfile.ZipFile(file, "w", compression) as archive:
            for name, content in parts.items():
                archive.writestr(name, content)

    return change


def bomb(file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(64 << 20))


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


NAN, INF = float("nan"), float("inf")
WEIGHT = "net.layers.0.f.query.weight"
STATES = {  # what a fault or someone else may have written into last.ckpt
    "another model": set_at("state_dict", "net.other", value=torch.zeros(2)),
    "a weight less": set_at("state_dict", WEIGHT),
    "another shape": set_at("state_dict", WEIGHT, value=torch.zeros(3, 3)),
    "no weights": set_at("state_dict"),
    "no optimiser": set_at("optimizer_states"),
    "no schedule": set_at("lr_schedulers"),
    "no state of ours": set_at("keeper"),
    "the folder above as the best checkpoint": set_at("callbacks", "ModelCheckpoint", "best_model_path", value=".."),
    "the folder above among the best": set_at("callbacks", "ModelCheckpoint", "best_k_models", value={"..": None}),
    "last.ckpt among the best": set_at(
        "callbacks", "ModelCheckpoint", "best_k_models", value={"last.ckpt": torch.tensor(0.1)}
    ),
    "a file of the user among the best": set_at(
        "callbacks", "ModelCheckpoint", "kth_best_model_path", value="../notes.txt"
    ),
}
FILES = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-500]),
    "empty": lambda file: file.write_bytes(b""),
    "compressed": rewritten(zipfile.ZIP_DEFLATED),
    "a zip bomb": bomb,
    "a named pipe": pipe,
    "a folder": directory,
}


@pytest.mark.parametrize("case", [*STATES, *FILES])
def test_an_invalid_state_is_refused_and_nothing_is_deleted(half, tmp_path, case):
    cfg, folder = half
    run = shutil.copytree(folder, tmp_path / "run")
    (run / "notes.txt").write_text("mine")
    (tmp_path / "canary").write_text("mine")
    last = run / "checkpoints" / "last.ckpt"
    repacked(last, STATES[case]) if case in STATES else FILES[case](last)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=r"last\.ckpt") as error:
        fit(cfg, run, resume=True)
    assert "\n" not in str(error.value)
    assert contents(tmp_path) == before


def test_a_checkpoint_that_was_stored_again_is_resumed(half, tmp_path):
    """So the cases above are refused because of their changes."""
    cfg, folder = half
    runs = [shutil.copytree(folder, tmp_path / name) for name in ("one", "other")]
    repacked(runs[1] / "checkpoints" / "last.ckpt", lambda content: None)
    rewritten(zipfile.ZIP_STORED)(runs[1] / "checkpoints" / "best.ckpt")
    for run in runs:
        fit(cfg, run, resume=True)
    assert differences(*runs) == []


def flip(file: Path, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


@pytest.mark.slow
def test_a_flipped_bit_is_found_or_changes_nothing(half, trained, settings, tmp_path):
    """At 60 random places of best.ckpt; most are refused, and none changes a probability."""
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    file = run / "checkpoints" / "best.ckpt"
    cfg, draw = settings(f"run={run}", config="predict"), random.Random(0)
    (reference,), _ = label_texts(cfg, ["a great film"])
    whole, refused = file.read_bytes(), 0
    for _ in range(60):
        flip(file, draw.randrange(8 * len(whole)))
        try:
            (found,), _ = label_texts(cfg, ["a great film"])
        except UserError:
            refused += 1
        else:
            assert found.probability == reference.probability
        file.write_bytes(whole)
    assert refused > 30


def test_a_flipped_bit_in_a_weight_of_last_ckpt_is_found(half, tmp_path):
    cfg, folder = half
    run = shutil.copytree(folder, tmp_path / "run")
    last = run / "checkpoints" / "last.ckpt"
    weight = torch.load(last, weights_only=True)["state_dict"][WEIGHT].numpy().tobytes()
    flip(last, 8 * last.read_bytes().index(weight) + 3)
    with pytest.raises(UserError, match=r"last\.ckpt cannot be read: it is damaged, the checksum of .* does not match"):
        fit(cfg, run, resume=True)


SCORED = {  # what best.ckpt may contain
    "weights that are nan": (set_at("state_dict", WEIGHT, value=torch.full((10, 10), NAN)), "are not finite"),
    "weights that are infinite": (set_at("state_dict", "net.head.bias", value=torch.full((2,), INF)), "are not finite"),
    "two labels alike": (set_at("hyper_parameters", "labels", value=["pos", "pos"]), "at least two different"),
    "one label": (set_at("hyper_parameters", "labels", value=["pos"]), "at least two different"),
    "labels that are numbers": (set_at("hyper_parameters", "labels", value=[0, 1]), "not a list of at least two"),
    "labels that are text": (set_at("hyper_parameters", "labels", value="np"), "not a list of at least two"),
}


@pytest.mark.parametrize("case", SCORED)
def test_a_checkpoint_that_no_training_wrote_is_never_scored(trained, settings, tmp_path, case):
    change, words = SCORED[case]
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    repacked(run / "checkpoints" / "best.ckpt", change)
    for command in (
        lambda: label_texts(settings(f"run={run}", config="predict"), ["good"]),
        lambda: score_run(settings(f"run={run}", config="evaluate")),
    ):
        with pytest.raises(UserError, match=rf"best\.ckpt cannot be loaded: .*{words}"):
            command()


@pytest.mark.slow
@pytest.mark.parametrize("slot", [10**6, -1])
def test_a_word_with_an_index_beyond_the_trained_vectors_is_refused(trained, settings, tmp_path, slot):
    run = shutil.copytree(trained("tuned_mean")[0], tmp_path / "run")

    def change(content: dict) -> None:
        slot_V = content["state_dict"]["net.embedding.slot_V"]
        slot_V[slot_V.nonzero()[0]] = slot

    repacked(run / "checkpoints" / "best.ckpt", change)
    with pytest.raises(UserError, match=r"slot_V points to other rows"):
        label_texts(settings(f"run={run}", config="predict"), ["good"])


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("layers.0.f.query.weight", lambda weight: weight.fill_(NAN), "not finite"),
        ("layers.0.f.query.weight", lambda weight: weight[:2], "another shape"),
        ("embedding.slot_V", lambda weight: weight * 1000, "other rows"),
    ],
)
def test_a_start_that_is_damaged_is_refused(trained, settings, small, tmp_path, name, change, words):
    start = shutil.copytree(trained("pretrained", "task=masked_words", "trainer.max_epochs=2")[0], tmp_path / "start")

    def changed(content: dict) -> None:
        weights = content["state_dict"]
        weights[f"net.encoder.{name}"] = change(weights[f"net.encoder.{name}"])

    repacked(start / "checkpoints" / "best.ckpt", changed)
    with pytest.raises(UserError, match=f"init=.* {words}"):
        fit(settings(*small, "model=pretrained", f"init={start}"), tmp_path / "run")


@pytest.mark.parametrize("case", FILES)
def test_a_damaged_best_checkpoint_is_named(trained, settings, tmp_path, case):
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    FILES[case](run / "checkpoints" / "best.ckpt")
    with pytest.raises(UserError, match=r"best\.ckpt"):
        label_texts(settings(f"run={run}", config="predict"), ["good"])


def test_messages_do_not_suggest_loading_code(trained, settings, tmp_path, capsys):
    class Harm:
        def __reduce__(self):
            return (print, ("code ran",))

    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    repacked(run / "checkpoints" / "best.ckpt", set_at("harm", value=Harm()))
    with pytest.raises(UserError, match="something other than tensors and plain values") as error:
        label_texts(settings(f"run={run}", config="predict"), ["good"])
    assert "weights_only" not in str(error.value)
    assert "code ran" not in capsys.readouterr().out


METRICS = {
    "empty": "",
    "a list": "[]",
    "an empty object": "{}",
    "deeply nested": "[" * 100_000,
    "text for a number": json.dumps({"model": "x", "seed": 1, "epochs": "three"}),
    "not UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("case", [*METRICS, "a folder", "a named pipe"])
def test_broken_metrics_give_a_message_of_one_line(trained, settings, tmp_path, case):
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    file = run / "metrics.json"
    if case in METRICS:
        content = METRICS[case]
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        (pipe if case == "a named pipe" else directory)(file)
    with pytest.raises(UserError, match=r"metrics\.json") as error:
        fit(settings(), run, resume=True)
    assert "\n" not in str(error.value)
    if case not in ("an empty object", "text for a number"):
        with pytest.raises(UserError, match=r"metrics\.json"):
            score_run(settings(f"run={run}", config="evaluate"))


CONFIGS = {
    "a list as the task": (lambda text: text.replace("task: reviews\n", "task: [x]\n"), "task"),
    "a list as the name of the model": (lambda text: text.replace("name: residual\n", "name: [x]\n"), r"model\.name"),
    "a hundred thousand layers": (lambda text: text.replace("layers: 3\n", "layers: 100000\n"), r"model\.layers"),
    "aliases of aliases": (lambda text: text + "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "aliases"),
    "deeply nested": (lambda text: text + "x: " + "[" * 5000 + "]" * 5000 + "\n", "cannot be read"),
}


@pytest.mark.parametrize(
    ("command", "case"),
    [
        pytest.param(command, case, marks=() if quick else pytest.mark.slow)
        for command in ("evaluate", "predict", "train")
        for case in CONFIGS
        for quick in [command == "evaluate" or case == "aliases of aliases"]
    ],
)
def test_broken_settings_of_a_run_give_a_message_of_one_line(trained, shell, tmp_path, case, command):
    change, words = CONFIGS[case]
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    file = run / "config.yaml"
    text = file.read_text()
    changed = change(text)
    assert changed != text
    file.write_text(changed)
    more = {"evaluate": [f"run={run}"], "predict": [f"run={run}", "text=good"], "train": [f"resume={run}"]}[command]
    done = shell(command, *more)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(rf"^error: .*{words}", done.stderr)


def test_a_finished_run_cannot_write_to_the_terminal(trained, shell, tmp_path):
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    metrics = json.loads((run / "metrics.json").read_text())
    for key in ("model", "test_set", "test_fingerprint"):
        metrics[key] = "\x1b]0;owned\x07\x1b[2J"
    (run / "metrics.json").write_text(json.dumps(metrics))
    done = shell("train", f"resume={run}")
    assert done.returncode == 0
    assert "already finished" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stdout + done.stderr


def test_the_cache_that_an_untrusted_run_names_is_not_used(trained, settings, tmp_path):
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    file = run / "config.yaml"
    lines = file.read_text().splitlines(True)
    theirs = f"  cache_dir: {tmp_path}/theirs\n"
    file.write_text("".join(theirs if line.startswith("  cache_dir:") else line for line in lines))
    label_texts(settings(f"run={run}", config="predict"), ["good"])
    score_run(settings(f"run={run}", config="evaluate"))
    assert not (tmp_path / "theirs").exists()
