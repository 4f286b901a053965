"""A browser for the tests of the interactive page, and the checker without its processes."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import imdbattn.check
from imdbattn.tools.check import process
from imdbattn.tools.check.checking import check_file
from imdbattn.tools.check.report import Outcome
from tests.explorer import chromium, settle


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
def open_page(browser) -> Iterator[Callable[..., Any]]:
    """open_page(address, fragment): a tab with the interactive page. Nothing fails, is blocked, or
    is requested from elsewhere.

    options: of the browser's context, such as viewport.
    """
    contexts: list[Any] = []
    problems: list[str] = []

    def get(address: str, fragment: str = "", **options: Any) -> Any:
        def note(request: Any) -> None:
            if not request.url.startswith((address, "blob:", "data:")):
                problems.append(request.url)

        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(30_000)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("request", note)
        tab.goto(f"{address}#{fragment}")
        settle(tab)
        return tab

    yield get
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def here(tmp_path, monkeypatch, capsys) -> Callable[..., subprocess.CompletedProcess]:
    """here("mine.py", ...): imdbattn.check in tmp_path; command and file run in this process."""

    def run(file: str, options: argparse.Namespace) -> Outcome:
        *_, outcome = check_file(str(tmp_path / file), dict(options.name), options.sheet)
        outcome.file = file
        return outcome

    def command(*arguments: str) -> subprocess.CompletedProcess:
        monkeypatch.setattr(sys, "argv", ["imdbattn-check", *arguments])
        with pytest.raises(SystemExit) as end:
            imdbattn.check.main()
        return subprocess.CompletedProcess(arguments, end.value.code, *capsys.readouterr())

    monkeypatch.setattr(process, "check_in_child", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return command
