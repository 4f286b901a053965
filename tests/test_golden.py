"""The numbers of every model are those of tests/golden.json."""

import json

import pytest
from filelock import FileLock

from tests.commands import run_process
from tests.golden import ALONE, FILE, LOSSES
from tests.marks import slow_except
from tests.nets import learner, net
from tests.processes import ENVIRONMENT

EXPECTED = json.loads(FILE.read_text())


# One model of each kind, for the quick tests.
QUICK = ("residual_pe_cls", "wide", "masked_words", "seq2seq_attention")


@pytest.fixture(scope="module")
def measured(shared):
    """measured(models): the numbers of this checkout, or of all models, by its own process."""

    def get(*models: str) -> dict[str, dict]:
        folder = shared / f"golden{len(models)}"
        file = folder.with_suffix(".json")
        with FileLock(f"{folder}.lock"):
            if not file.exists():
                folder.mkdir()
                words = ["-m", "tests.golden", str(folder), str(file), *models]
                done = run_process(words, shared, ENVIRONMENT)
                assert done.returncode == 0, done.stderr
        return json.loads(file.read_text())

    return get


@pytest.mark.parametrize("rung", ALONE)
def test_every_rung_builds_the_model_it_names(settings, rung):
    """By the names of its weights; rungs with equal names differ in tests/nn/test_word_order.py."""
    module = learner(settings(f"model={rung}"), net(settings, rung))
    assert sorted(module.state_dict()) == EXPECTED[rung]["names"]


@pytest.mark.slow
def test_every_model_is_measured(measured):
    assert set(measured()) == set(EXPECTED)


@pytest.mark.parametrize("model", slow_except(QUICK, EXPECTED))
def test_data_weights_and_losses_equal_the_recorded_ones(measured, model):
    """Splits, batches and the names of weights, by which earlier checkpoints are read, exactly;
    initial weights up to rounding, and losses to 0.001.
    """
    expected, found = EXPECTED[model], measured(*(QUICK if model in QUICK else ()))[model]
    weights, initial = (
        numbers.pop("initial weights") for numbers in (expected.copy(), found.copy())
    )
    assert [size for size, *_ in initial] == [size for size, *_ in weights]
    for (_, *sums), (_, *known) in zip(initial, weights, strict=True):
        assert sums == pytest.approx(known, rel=1e-6, abs=1e-6)
    for key in set(expected) - {"initial weights"}:
        exact = key not in (*LOSSES, "known_tokens")
        assert found[key] == (expected[key] if exact else pytest.approx(expected[key], abs=1e-3)), (
            key
        )
