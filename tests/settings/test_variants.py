"""Runs are averaged as seeds of one variant only if no setting that changes numbers differs."""

from collections.abc import Callable
from typing import Any

import pytest

from imdbattn.settings.keys import (
    flattened,
    is_in_groups,
    named_overrides,
    settings_digest,
    variant_digest,
)

# Settings that change no number of a result, groups included.
NO_NUMBERS = (
    *("resume", "trust", "threads", "record_steps", "test", "pictures", "save_minutes", "logger"),
    "attention_reviews",
    *("data.cache_dir", "data.min_known"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary"),
    *("trainer.log_every_n_steps", "trainer.profiler"),
)
HARDWARE = (
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy"),
    "trainer.benchmark",
)
AVERAGED = ("seed", "data.fold")
# Their values are places; a comparison reads the fingerprints of what was found there, and the
# number of epochs. See test_compare.py.
COMPARED = ("init", "data.path", "data.source", "data.vectors.path", "data.vectors.source")
COMPARED += ("data.extra", "trainer.max_epochs")

COMMANDS = {
    "a classifier with positions": ("model=residual_pe",),
    "trained vectors": ("model=tuned",),
    "phrases and a convolution": ("model=log_counts",),
    "pretraining": ("task=masked_words",),
    "an encoder-decoder": ("task=seq2seq", "model=seq2seq_attention_additive"),
    "translation": ("task=seq2seq", "data=translation"),
    "generated reviews": ("data=order_probe",),
    "a debug run": ("debug=overfit",),
}


def other(value: Any) -> Any:
    """A value that differs from this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, "more"]
    return f"{value or ''}other"


def with_value(settings: dict, key: str, value: Any) -> dict:
    """The settings with another value of one dotted key."""
    group, _, rest = key.partition(".")
    return settings | {group: with_value(settings[group], rest, value) if rest else value}


def ignored(digest: Callable[[dict], str], settings: dict, keys: list[str]) -> list[str]:
    """Those of the keys whose value does not change the digest."""
    values = flattened(settings)
    changed = {key: digest(with_value(settings, key, other(values[key]))) for key in keys}
    return [key for key in keys if changed[key] == digest(settings)]


def reversed_keys(value: Any) -> Any:
    """The same settings with the keys of every group in the opposite order."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return value


@pytest.mark.parametrize("case", COMMANDS)
def test_the_order_of_keys_makes_no_variant_and_no_job(composed, case):
    settings = composed(*COMMANDS[case])
    assert variant_digest(reversed_keys(settings)) == variant_digest(settings)
    assert settings_digest(reversed_keys(settings)) == settings_digest(settings)


@pytest.mark.parametrize("case", COMMANDS)
def test_a_setting_that_changes_numbers_makes_another_variant_and_another_job(composed, case):
    settings = composed(*COMMANDS[case])
    keys = [key for key in flattened(settings) if not is_in_groups(key, *NO_NUMBERS, "seed")]
    of_variants = [key for key in keys if not is_in_groups(key, *HARDWARE, *AVERAGED, *COMPARED)]
    assert {"optim.weight_decay", "optim.lr", "label_smoothing", "model.name"} <= {*of_variants}
    assert ignored(settings_digest, settings, keys) == []
    assert ignored(variant_digest, settings, of_variants) == []


def test_seed_hardware_logging_and_places_of_files_divide_no_variant(composed):
    settings = composed("model=tuned")
    names = (*NO_NUMBERS, *HARDWARE, *AVERAGED, *COMPARED)
    keys = [key for key in flattened(settings) if is_in_groups(key, *names)]
    assert ignored(variant_digest, settings, keys) == keys
    keys = [key for key in keys if is_in_groups(key, *NO_NUMBERS, "seed")]
    assert ignored(settings_digest, settings, keys) == keys


def test_the_precision_of_a_trainer_names_a_variant_and_its_hardware_does_not(composed):
    for trainer, named in (("gpu", ["trainer.precision=bf16-mixed"]), ("cpu", [])):
        words = ["seed=2", f"trainer={trainer}"]
        assert named_overrides(words, composed(*words)) == named
