"""A browser for the tests of the interactive page, and the checker without its processes."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import imdbattn.check
from imdbattn.tools.check import process
from imdbattn.tools.check.parts import check
from imdbattn.tools.check.report import Outcome

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


@pytest.fixture
def here(tmp_path, monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess]:
    """here("mine.py", ...): imdbattn.check in tmp_path, for promises that are not about processes:
    command and file run in this one.
    """

    def run(file: str, names: dict, *limits_and_sheet: Any) -> Outcome:
        outcome = Outcome(file)
        for message in check(str(tmp_path / file), names, limits_and_sheet[2]):
            outcome.take(message)
        return outcome

    def command(*arguments: str) -> subprocess.CompletedProcess:
        monkeypatch.setattr(sys, "argv", ["imdbattn-check", *arguments])
        with pytest.raises(SystemExit) as end:
            imdbattn.check.main()
        return subprocess.CompletedProcess(arguments, end.value.code, *capsys.readouterr())

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return command
