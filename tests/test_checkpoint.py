"""Promise 9: a checkpoint contains only tensors and plain values, is small, and predicts the same elsewhere."""

import shutil

import pytest
import torch

from imdbattn.errors import UserError
from imdbattn.settings.keys import BEYOND, RUNGS

from .commands import label_texts
from .conftest import KINDS
from .marks import slow_except


@pytest.mark.parametrize("rung", slow_except(KINDS, [*RUNGS, *BEYOND]))
def test_it_loads_with_weights_only_and_is_small(trained, rung):
    folder, _ = trained(rung)
    for name in ("best", "last"):
        file = folder / "checkpoints" / f"{name}.ckpt"
        content = torch.load(file, weights_only=True)
        assert content["hyper_parameters"]["labels"] == ["neg", "pos"]
        assert not any("vectors" in key for key in content["state_dict"])
        assert file.stat().st_size < 2_000_000


def test_it_predicts_the_same_on_another_machine(trained, settings, world, tmp_path):
    """Another machine: the run folder copied, the reviews gone, the vectors elsewhere, an empty cache."""
    folder, _ = trained("residual_pe")
    text = "The film was great, and i do n't know a lovely story like it."
    here, _ = label_texts(settings(f"run={folder}", config="predict"), [text])
    copy, vectors = tmp_path / "run", tmp_path / "elsewhere.txt"
    shutil.copytree(folder, copy)
    shutil.copy(world / "glove.txt", vectors)
    moved = [f"data.cache_dir={tmp_path}/cache", f"data.glove.path={vectors}", "data.glove.dim=10"]
    there, _ = label_texts(settings(f"run={copy}", *moved, config="predict"), [text])
    assert there[0].probability == here[0].probability
    assert there[0].output == here[0].output


def test_other_vectors_are_refused(trained, settings, world, tmp_path):
    folder, _ = trained("mean")
    lines = (world / "glove.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    elsewhere = [f"data.glove.path={tmp_path}/other.txt", "data.glove.dim=10"]
    with pytest.raises(UserError, match=r"vectors with fingerprint .* set data\.glove"):
        label_texts(settings(f"run={folder}", *elsewhere, config="predict"), ["good"])


class Harm:
    def __reduce__(self):
        return (print, ("code ran",))


def test_a_checkpoint_with_code_in_it_is_refused(trained, settings, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(trained("mean")[0], copy)
    file = copy / "checkpoints" / "best.ckpt"
    torch.save({**torch.load(file, weights_only=True), "harm": Harm()}, file)
    with pytest.raises(UserError, match=r"best\.ckpt cannot be read: it contains something other than tensors"):
        label_texts(settings(f"run={copy}", config="predict"), ["good"])
    assert "code ran" not in capsys.readouterr().out
