"""Wrong settings end in one clear line and a non-zero exit; help is quick and says what there is to choose."""

import pytest

from imdbattn.errors import UserError
from imdbattn.settings import RUNGS


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", r"seed=-1 must be a whole number of at least 0"),
        ("seed=one", r"seed=one must be a whole number"),
        ("data.max_tokens=0", r"data\.max_tokens=0 must be a whole number of at least 1, or null"),
        ("data.word_dropout=1.0", r"data\.word_dropout=1\.0 must be a number from 0 to below 1"),
        ("data.validation_share=0", r"data\.validation_share=0 must be a number from 0 to 1 \(exclusive\)"),
        ("data.head_share=2", r"data\.head_share=2 must be a number from 0 to 1"),
        ("data.encoding_errors=ignore", r"must be one of strict, replace"),
        ("model.layers=-1", r"model\.layers=-1 must be a whole number of at least 0"),
        ("model.embedding.trainable=yes please", r"must be true or false"),
        ("optim.lr=fast", r"optim\.lr=fast must be a number of at least 0"),
        ("decay=step", r"decay=step must be one of cosine, linear, none"),
        ("patience=0", r"patience=0 must be a whole number of at least 1, or null"),
        ("warmup=null", r"warmup=null must be a number"),
        ("seed=5000000000", r"at most 4294967295"),
        ("data.label_names=pos", r"data\.label_names=pos must be a list of different names"),
        ("data.test_share=0.95", r"data\.validation_share and data\.test_share leave nothing for training"),
    ],
)
def test_values_out_of_range_are_named_with_what_is_allowed(settings, override, message):
    with pytest.raises(UserError, match=message):
        settings(override)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.layer.heads=3"], r"model=residual_pe: model\.layer\.heads=3 does not divide the width 8"),
        (["model=residual_learned", "data.max_tokens=null"], r"data\.max_tokens"),
        (["model.layer._target_=os.system"], r"_target_=os\.system is no Module of imdbattn\.nn\."),
        (["model.pooling._target_=torch.nn.functional.relu"], r"_target_=torch\.nn\.functional\.relu is no Module"),
        (["optim._target_=torch.load"], r"_target_=torch\.load is no Optimizer of torch\.optim\."),
        (["trainer._target_=imdbattn.data.cache.write_atomically"], r"is no Trainer of lightning\."),
        (["model.positions._target_=imdbattn.nn.positions.Nowhere"], r"positions\.Nowhere is no Module"),
        (["trainer.limit_val_batches=0"], r"trainer\.limit_val_batches=0"),
        (["data.source=packaged"], r"data\.path is given, so data\.source=packaged has no meaning"),
        (["optim._target_=torch.optim.Madam"], r"torch\.optim\.Madam is no Optimizer"),
        (["trainer.accelerator=abacus"], r"trainer: .*abacus"),
        (["data.source=floppy"], r"data\.source=floppy is unknown; choose one of auto, hub, packaged, path"),
        (["data.tokenizer=scissors"], r"data\.tokenizer=scissors"),
        (["data.source=path", "data.path=null"], r"data\.source=path needs data\.path"),
        (["data.glove.dim=9"], r"9"),
    ],
)
def test_parts_that_do_not_fit_are_named(settings, small, tmp_path, overrides, message):
    from imdbattn.training.fit import fit

    with pytest.raises(UserError, match=message) as error:
        fit(settings(*small, *overrides), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "run").rglob("*.json"))


def test_a_wrong_value_ends_in_one_line_and_a_status(shell):
    done = shell("train", "seed=-1")
    assert done.returncode == 2
    assert done.stderr == "error: seed=-1 must be a whole number of at least 0 and at most 4294967295\n"


@pytest.mark.parametrize("override", ["modle=mean", "model=means", "model.layerss=2", "trainer.max_epoch=2"])
def test_a_misspelt_key_or_choice_is_named(shell, override):
    done = shell("train", override)
    assert done.returncode != 0
    assert override.partition("=")[0].rpartition(".")[2] in done.stderr or "means" in done.stderr
    assert "Traceback" not in done.stderr


def test_learned_positions_must_reach_as_far_as_reviews(settings):
    with pytest.raises(UserError, match=r"model\.positions\.length=10 is too short for data\.max_tokens=512"):
        settings("model=residual_learned", "model.positions.length=10")


def test_help_lists_the_choices(shell):
    done = shell("train", "--help")
    assert done.returncode == 0
    for word in (*RUNGS, "wandb, ", "imdbattn-train -m", "run=<run folder>", "max_tokens: 512"):
        assert word.rstrip(", ") in done.stdout, word
    assert "== Configuration groups ==" not in done.stdout
    assert "run=<run folder>" in shell("predict", "--help").stdout
    assert "split=validation" in shell("evaluate", "--help").stdout
