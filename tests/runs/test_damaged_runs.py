"""A damaged or untrusted run folder gives one line; nothing of it is deleted or scored."""

import shutil
import signal
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from imdbattn.errors import UserError
from imdbattn.runs.evaluate import evaluate_run
from imdbattn.runs.fit import fit
from imdbattn.tasks.reviews.module import ReviewClassifier
from tests.commands import label_texts
from tests.resuming import contents, stops


@pytest.fixture(scope="module")
def stopped(small, settings, tmp_path_factory) -> tuple[DictConfig, Path]:
    """Settings and folder of a run that was stopped in its second epoch."""
    cfg = settings(*small, "model=residual", "trainer.max_epochs=3")
    folder = tmp_path_factory.mktemp("half")
    with pytest.MonkeyPatch.context() as patch:
        stops(patch, ReviewClassifier)(20, signal.SIGTERM)
        with pytest.raises(SystemExit):
            fit(cfg, folder)
    return cfg, folder


def repacked(file: Path, change) -> None:
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, file)


NAN = float("nan")
WEIGHT = "net.layers.0.f.query.weight"


def flipped(file: Path) -> None:
    """A flipped bit in a weight."""
    weight = torch.load(file, weights_only=True)["state_dict"][WEIGHT].numpy().tobytes()
    content = bytearray(file.read_bytes())
    content[content.index(weight)] ^= 8
    file.write_bytes(content)


DAMAGE = {
    "cannot be read": lambda file: file.write_bytes(file.read_bytes()[:-500]),
    "damaged, the checksum of .* does not match": flipped,
}


@pytest.mark.parametrize("case", DAMAGE)
def test_an_invalid_state_is_refused_and_nothing_is_deleted(stopped, tmp_path, case):
    cfg, folder = stopped
    run = shutil.copytree(folder, tmp_path / "run")
    last = run / "checkpoints" / "last.ckpt"
    DAMAGE[case](last)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=case):
        fit(cfg, run, resume=True)
    assert contents(tmp_path) == before


def test_no_file_that_a_state_names_is_deleted(stopped, tmp_path):
    """Lightning deletes the best checkpoint that the state names when it has saved a better one."""
    cfg, folder = stopped
    run = shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "mine.txt").write_text("mine")
    mine = f"{run}/checkpoints/../../mine.txt"

    def changed(content: dict) -> None:
        (name,) = (name for name in content["callbacks"] if name.startswith("BestWeights"))
        state = content["callbacks"][name]
        state |= {"dirpath": str(run / "checkpoints"), "best_k_models": {mine: torch.tensor(0.0)}}
        state |= dict.fromkeys(("best_model_path", "kth_best_model_path", "last_model_path"), mine)

    repacked(run / "checkpoints" / "last.ckpt", changed)
    fit(cfg, run, resume=True)
    assert (tmp_path / "mine.txt").exists()


def test_weights_that_are_not_finite_are_never_scored(trained, settings, tmp_path):
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    best = run / "checkpoints" / "best.ckpt"
    repacked(best, lambda content: content["state_dict"][WEIGHT].fill_(NAN))
    with pytest.raises(UserError, match="are not finite"):
        label_texts(settings(f"run={run}", config="predict"), ["good"])
    with pytest.raises(UserError, match="are not finite"):
        evaluate_run(settings(f"run={run}", config="evaluate"))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("layers.0.f.query.weight", lambda weight: weight.fill_(NAN), "not finite"),
        ("embedding.slot_V", lambda weight: weight * 1000, "has other words"),
    ],
)
def test_a_start_that_is_damaged_is_refused(
    trained, settings, small, tmp_path, name, change, words
):
    start = shutil.copytree(
        trained("pretrained", "task=masked_words", "trainer.max_epochs=2")[0], tmp_path / "start"
    )

    def changed(content: dict) -> None:
        weights = content["state_dict"]
        weights[f"net.encoder.{name}"] = change(weights[f"net.encoder.{name}"])

    repacked(start / "checkpoints" / "best.ckpt", changed)
    with pytest.raises(UserError, match=f"init=.* {words}"):
        fit(settings(*small, "model=pretrained", f"init={start}"), tmp_path / "run")


def test_the_cache_that_an_untrusted_run_names_is_not_used(trained, settings, tmp_path):
    run = shutil.copytree(trained("residual")[0], tmp_path / "run")
    file = run / "config.yaml"
    lines = file.read_text().splitlines(True)
    theirs = f"  cache_dir: {tmp_path}/theirs\n"
    file.write_text("".join(theirs if line.startswith("  cache_dir:") else line for line in lines))
    label_texts(settings(f"run={run}", config="predict"), ["good"])
    evaluate_run(settings(f"run={run}", config="evaluate"))
    assert not (tmp_path / "theirs").exists()
