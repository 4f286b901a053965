"""A run folder may name classes of the listed packages only, for every group."""

import string
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imdbattn.settings.trust import TRUSTED, untrusted

GROUPS = (*TRUSTED, "data", "anything")
NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=12)
PACKAGES = st.one_of(st.sampled_from(sorted(sys.stdlib_module_names)), NAMES)


@given(st.sampled_from(GROUPS), PACKAGES, NAMES, st.lists(NAMES, min_size=1, max_size=4))
def test_a_class_of_any_other_package_is_not_trusted(group, package, name, keys):
    target = f"{package}.{name}"
    allowed = TRUSTED.get(group, ())
    if f"{target}.".startswith(tuple(f"{known}." for known in allowed)):
        return
    nested = {"_target_": target}
    for key in reversed(keys):
        nested = {key: nested}
    found = list(untrusted({group: nested}))
    assert found == [(".".join([group, *keys, "_target_"]), target, package)]


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
