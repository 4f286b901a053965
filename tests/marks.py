"""Marks of parametrized tests."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

# Quick tests that need a run of each rung use these: one of each kind.
KINDS = ("mean", "text_query", "residual_pe", "residual_pe_cls", "wide", "distilled")


def slow(*case: Any) -> Any:
    """Returns a case of a parametrized test, for `make test-slow` only."""
    return pytest.param(*case, marks=pytest.mark.slow)


def slow_except(quick: Collection[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrized test, all but `quick` for `make test-slow` only."""
    return [case if case in quick else pytest.param(case, marks=pytest.mark.slow) for case in cases]
