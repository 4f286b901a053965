"""`init` starts from the weights of a finished run of the same shape."""

import pytest

from imdbattn.errors import UserError
from imdbattn.runs.fit import fit
from tests.marks import slow, slow_except
from tests.resuming import saved
from tests.world import REVERSE, TRANSLATION

STILL = ("trainer.max_epochs=1", "optim.lr=0.0", "embedding_lr=0.0")  # training changes nothing
KINDS = {
    "frozen vectors": ("model=residual_pe", "optim=adamw"),
    "trained vectors, phrases": ("model=log_counts",),
    "masked_words": ("task=masked_words",),
    "reverse": REVERSE,
    "translation": TRANSLATION,
}


@pytest.fixture(scope="module")
def finished(settings, small, tmp_path_factory):
    """finished(kind): overrides, folder and metrics of a run of that kind, once."""
    runs: dict[str, tuple] = {}

    def get(kind: str) -> tuple:
        if kind not in runs:
            own = [] if "task=seq2seq" in KINDS[kind] else small
            words = [*own, *KINDS[kind], "trainer.max_epochs=2"]
            folder = tmp_path_factory.mktemp("run")
            runs[kind] = words, folder, fit(settings(*words), folder)
        return runs[kind]

    return get


@pytest.mark.parametrize("kind", slow_except(["trained vectors, phrases"], KINDS))
def test_a_run_starts_from_the_weights_of_a_finished_run(finished, settings, tmp_path, kind):
    words, start, expected = finished(kind)
    cfg = settings(*words, f"init={start}", "seed=7", *STILL)
    found = fit(cfg, tmp_path)
    scores = [name for name in expected if name.startswith(("val_", "test_"))]
    assert "val_loss" in scores
    assert {name: found[name] for name in scores} == {name: expected[name] for name in scores}
    (tmp_path / "metrics.json").unlink()
    assert fit(cfg, tmp_path, resume=True)["init_digest"] == found["init_digest"]


@pytest.mark.parametrize(
    ("kind", "override", "message"),
    [
        ("frozen vectors", "model.net.layers=1", r"Unexpected key\(s\) in state_dict: \"layers"),
        ("frozen vectors", "data.label_names=[pos,neg]", "has another test split"),
        (
            "masked_words",
            "data.extra={world}/unlabeled.txt",
            "guessed_G has other words than this model: use the same data.extra",
        ),
        slow("translation", "data.min_frequency=9", "was trained with other source symbols"),
    ],
)
def test_a_run_of_another_shape_or_with_other_data_is_refused(
    finished, settings, world, tmp_path, kind, override, message
):
    words, start, _ = finished(kind)
    with pytest.raises(UserError, match=f"^init={start} .*({message})[^\n]*$"):
        fit(settings(*words, f"init={start}", override.format(world=world)), tmp_path)


def test_the_scale_of_the_vectors_is_that_of_the_settings(finished, settings, tmp_path):
    words, start, _ = finished("frozen vectors")
    fit(settings(*words, "model.embedding.standardize=false", f"init={start}", *STILL), tmp_path)
    assert (saved(tmp_path, "best")["state_dict"]["net.embedding.scale_D"] == 1).all()
