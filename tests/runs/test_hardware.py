"""A run that needs hardware that is not there ends in one line, before data are read."""

import pytest
import torch

from imdbattn.errors import UserError
from imdbattn.runs.fit import fit


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer=gpu"], r"there is no GPU; use trainer=ddp_cpu"),
        (["trainer=ddp_cpu", "trainer.num_nodes=2"], r"num_nodes=2: .* neither srun nor torchrun"),
        (["record_steps=true"], r"record_steps=true: only steps on a CUDA device"),
    ],
)
def test_missing_hardware_is_reported_before_data_are_read(
    small, settings, monkeypatch, tmp_path, words, message
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(
        "imdbattn.tasks.reviews.module.prepare_reviews", lambda _: pytest.fail("read")
    )
    with pytest.raises(UserError, match=message):
        fit(settings(*small, "model=mean", *words), tmp_path)
