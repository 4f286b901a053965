"""Seeds reproduce a CPU run bit for bit, and different seeds differ."""

import pyarrow.parquet as pq
import torch

from imdbattn.runs.fit import fit
from tests.resuming import saved


def run(settings, small, folder, *overrides):
    metrics = fit(settings(*small, "trainer.max_epochs=1", *overrides), folder)
    probabilities = pq.read_table(folder / "predictions.parquet")["probability"].to_pylist()
    return metrics, saved(folder)["state_dict"], probabilities


def test_the_same_seed_gives_the_same_bits(settings, small, tmp_path):
    dropout = "model.net.layer.dropout=0.1"
    first, again, other = (
        run(settings, small, tmp_path / name, "model=residual_pe_cls", f"seed={seed}", dropout)
        for name, seed in (("first", 5), ("again", 5), ("other", 6))
    )
    assert all(torch.equal(first[1][name], again[1][name]) for name in first[1])
    assert first[2] == again[2]
    assert first[0]["val_loss"] == again[0]["val_loss"]
    assert first[2] != other[2]


def test_the_split_does_not_depend_on_the_seed(settings, small, tmp_path):
    one, two = (
        run(settings, small, tmp_path / f"s{seed}", "model=mean", f"seed={seed}")[0]
        for seed in (1, 2)
    )
    assert one["test_fingerprint"] == two["test_fingerprint"]
