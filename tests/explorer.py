"""Runs for the interactive page, and a client of its server."""

import json
import math
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from imdbattn.explore.runs import Runs
from imdbattn.explore.server import make_app
from imdbattn.settings.schema import Explore

TOKEN = "secret"
TEXT = "I do not like the dull story, but the great actor was lovely ."
CLASSIFIERS = ("mean", "learned_query", "base", "residual_pe", "residual_cls", "tuned", "convolved", "bigrams")
WRITER = ("seq2seq_attention", "task=seq2seq", "data=reverse", "model.hidden=16", "model.width=8")
WRITER += ("data.letters=6", "data.lengths=[1,6]", "data.train=200", "data.validation=40", "data.test=60")
WRITER += ("optim.lr=0.01", "trainer.max_epochs=3")


class Page:
    """What a browser does: requests, below the token, to a server of these runs."""

    def __init__(self, cfg: Explore):
        self.runs = Runs(cfg.runs, cfg)
        self.client = TestClient(make_app(self.runs, TOKEN), f"http://127.0.0.1:8765/{TOKEN}/")

    def run(self, label: str) -> str:
        """The id of a run."""
        return next(name for name, found in self.runs.labels.items() if found == label)

    def ask(self, kind: str, expected: int = 200, **values: Any) -> Any:
        answer = self.client.post(f"api/{kind}", json=values)
        assert answer.status_code == expected, answer.text
        if expected != 200:
            return answer.json()["error"]
        return answer.json() if "json" in answer.headers["content-type"] else answer.content

    def read(self, label: str, text: str = TEXT, **changes: Any) -> SimpleNamespace:
        """The facts, and `weights`: an array (H, Q, K) of each attention that is not skipped."""
        return opened(self.ask("read", run=self.run(label), text=text, changes=changes))

    def net(self, label: str) -> Any:
        return self.runs.model(self.run(label)).net


def opened(content: bytes) -> SimpleNamespace:
    (size,) = struct.unpack_from("<I", content)
    facts = json.loads(content[4 : 4 + size])
    numbers, weights = np.frombuffer(content, "<f4", offset=4 + size), []
    for one in facts.get("attentions", []):
        if one["heads"]:
            shape = one["heads"], one["queries"], len(facts["keys"])
            weights.append(numbers[: math.prod(shape)].reshape(shape))
            numbers = numbers[math.prod(shape) :]
    return SimpleNamespace(**facts, weights=weights, rest=numbers)
