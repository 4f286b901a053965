"""A run folder may name classes of the listed packages only, for every group."""

import sys

import pytest

from imdbattn.settings.trust import TRUSTED, untrusted

GROUPS = (*TRUSTED, "data", "anything")


@pytest.mark.parametrize("group", GROUPS)
def test_no_class_of_the_standard_library_is_trusted(group):
    """Each package, because drawn examples contain a certain one in few runs only."""
    for package in sorted(sys.stdlib_module_names):
        settings = {group: {"_target_": f"{package}.name"}}
        assert [found for *_, found in untrusted(settings)] == [package]


@pytest.mark.parametrize("group", TRUSTED)
def test_only_packages_without_side_effects_are_trusted_by_default(group):
    known = ("imdbattn.", "torch.", "lightning.", "swanlab.integration.")
    assert all(f"{name}.".startswith(known) for name in TRUSTED[group])


def test_a_named_package_is_trusted_and_no_other():
    settings = {"model": {"a": {"_target_": "mine.A"}, "b": {"_target_": "mines.B"}}}
    assert [target for _, target, _ in untrusted(settings, "mine")] == ["mines.B"]
