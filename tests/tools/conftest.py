"""A browser for the tests of the interactive page."""

from collections.abc import Iterator
from typing import Any

import pytest

from ..explorer import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = chromium(started)
        if browser is None:
            pytest.skip("no browser: apt-get install chromium, or playwright install chromium")
        yield browser
        browser.close()
