"""The interactive page for tests: a client of its server, the server itself, and a browser."""

import json
import math
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imdbattn.settings.command_settings import ExploreSettings
from imdbattn.tools.explore.runs import Runs

TOKEN = "secret"
TEXT = "I do not like the dull story, but the great actor was lovely ."
CLASSIFIERS = (
    *("mean", "learned_query", "base", "residual_pe", "residual_cls", "tuned"),
    *("convolved", "log_counts", "label_query", "residual_rope"),
)
WRITER = "seq2seq_attention"

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OFFLINE = (
    "--disable-gpu --disable-background-networking --disable-component-update --disable-sync"
    " --no-first-run"
)


class Page:
    """Sends requests with the token to a server of these runs, as a browser does."""

    def __init__(self, cfg: ExploreSettings):
        client = pytest.importorskip("starlette.testclient")
        from imdbattn.tools.explore.server import make_server

        self.runs = Runs(cfg)
        address = f"http://127.0.0.1:8765/{TOKEN}/"
        app = make_server(self.runs, TOKEN).config.app
        self.client = client.TestClient(app, address, raise_server_exceptions=False)

    def run(self, model: str) -> str:
        """The id of the first run of a model."""
        return next(name for name, run in self.runs.by_id.items() if run.model == model)

    def ask(self, kind: str, expected: int = 200, **values: Any) -> Any:
        """The answer, see `opened`, or the message of an error."""
        answer = self.client.post(f"api/{kind}", json=values)
        assert answer.status_code == expected, answer.text
        if expected != 200:
            return answer.json()["error"]
        (size,) = struct.unpack_from("<I", answer.content)
        numbers = np.frombuffer(answer.content, "<f4", offset=4 + size)
        return opened(json.loads(answer.content[4 : 4 + size]), numbers)

    def read(self, model: str, text: str = TEXT, **changes: Any) -> SimpleNamespace:
        return self.ask("read", run=self.run(model), text=text, changes=changes)

    def net(self, model: str) -> Any:
        return self.runs.predictor(self.run(model)).net


def opened(facts: dict[str, Any], numbers: np.ndarray) -> SimpleNamespace:
    """The facts and numbers of an answer. maps: an array (H, Q, K) of each attention."""
    rest = numbers

    def take(*shape: int) -> np.ndarray:
        nonlocal rest
        taken, rest = np.split(rest, [math.prod(shape)])
        return taken.reshape(shape)

    keys = len(facts.get("keys", []))
    maps = [take(one["heads"], one["queries"], keys) for one in facts.get("attentions", [])]
    facts |= {name: take(*shape) for name, shape in facts.get("shapes", {}).items()}
    words = facts.get("words", [])
    facts["removed"] = [word for word in words if word["removed"]]
    facts["words"] = [word for word in words if not word["removed"]]
    return SimpleNamespace(**facts, maps=maps, rest=rest)


@contextmanager
def served(page: Page) -> Iterator[str]:
    """Serves a page from a thread of this process, so that tests can compare with its models.

    Yields its address.
    """
    from imdbattn.tools.explore.server import make_server

    server = make_server(page.runs, TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as opened:
        thread = threading.Thread(target=server.run, args=[[opened]], daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{opened.getsockname()[1]}/{TOKEN}/"
        finally:
            server.should_exit = True
            thread.join(30)


def chromium(playwright: Any) -> Any:
    """Starts the machine's Chromium or that of playwright; None if there is neither."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and not Path(playwright.chromium.executable_path).exists():
        return None
    return playwright.chromium.launch(
        executable_path=found, args=["--no-sandbox", *OFFLINE.split()]
    )


def settle(tab: Any) -> None:
    """Waits until no answer is expected."""
    tab.wait_for_selector("main[aria-busy=false]", state="attached")
