"""A run that needs hardware that is not there ends in one line, before data are read."""

import pytest
import torch

from imdbattn.errors import UserError
from imdbattn.runs.fit import fit


@pytest.mark.parametrize("trainer", ["gpu", "ddp", "slurm"])
def test_a_missing_gpu_is_reported_before_data_are_read(
    trainer, small, settings, monkeypatch, tmp_path
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(
        "imdbattn.tasks.reviews.classifier.prepare_reviews", lambda _: pytest.fail("read")
    )
    with pytest.raises(UserError, match=r"there is no GPU; use trainer=ddp_cpu"):
        fit(settings(*small, "model=mean", f"trainer={trainer}"), tmp_path)


def test_several_machines_without_srun_are_reported_before_data_are_read(
    small, settings, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        "imdbattn.tasks.reviews.classifier.prepare_reviews", lambda _: pytest.fail("read")
    )
    with pytest.raises(UserError, match=r"num_nodes=2: .* neither srun nor torchrun"):
        fit(settings(*small, "model=mean", "trainer=ddp_cpu", "trainer.num_nodes=2"), tmp_path)


def test_recorded_steps_without_a_gpu_are_reported_before_data_are_read(
    small, settings, monkeypatch, tmp_path
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        "imdbattn.tasks.reviews.classifier.prepare_reviews", lambda _: pytest.fail("read")
    )
    with pytest.raises(UserError, match=r"record_steps=true: only steps on a CUDA device"):
        fit(settings(*small, "model=mean", "record_steps=true"), tmp_path)
