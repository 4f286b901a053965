"""One HTML file that computes trained models in the browser: its words are the tokenizer's, its
numbers are those of the Python package, and it needs neither a server nor the network.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import imdbattn
from imdbattn.data.tokens import Tokenizer
from imdbattn.errors import UserError
from imdbattn.tools.explore import onefile

from ..explorer import TEXT, chromium, opened, settle

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no browser tests: pip install playwright"
)

SCORE = "model.layer.score._target_=imdbattn.nn"
RUNGS = (
    "mean",
    "learned_query",
    "text_query",
    "label_query",
    "base",
    "residual_pe",
    "residual_cls",
    "residual_heads",
    "residual_learned",
    "residual_rope",
    "residual_relative",
    "tuned",
)
SCORES = (
    ("base", f"{SCORE}.scores.Dot"),
    ("base", f"{SCORE}.scores.Bilinear"),
    ("residual_pe", f"{SCORE}.scores.Additive", "model.layer.heads=5"),
    ("residual_pe", f"{SCORE}.beyond.attention.Uniform"),
)
CHANGES = (
    {},
    {"words": [0, 3, 9], "shuffle": 5},
    {"heads": [[1, 1]], "layers": [2], "positions": True, "words": [2]},
)
# Pieces of texts that the tokenizers split, normalize or replace.
PIECES = (
    "The film great movie don't it's I'm we'll o'brien 'em '90s u.s. e.g. mr. Dr. etc. 1,000 3.5"
    " 10/10 well-done -- --- .. ... .... ! ?? ; : ( ) [x] <br /> <BR/> <br> & &amp; \" `` '' @ # %"
    " ½ ¨ café cafe\u0301 NAÏVE na\u00efve İstanbul ΟΔΟΣ ΣΑΣ ﬁlm ﬀ ﬆ ｆｕｌｌ！ ＡＢＣ 中文 電影 日本語 한국어"
    " \u1112\u1161\u11ab \U0001f3ac \U0001f600 \U0001f468\u200d\U0001f469 \x91quoted\x92 \x93a\x94"
    " \x96 \x97 \x85 … …… ‘a’ “b” – — \u0301 a\u0323\u0301 \ufffd \u00ad \u200b ß ẞ ÆON ǅ"
    " didn't' n't can't.' rock'n'roll"
).split(" ")
SPACES = (" ", " ", " ", "", "", "\n", "\t", "\u00a0", "\u3000", "\x85", "\u2028")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = chromium(started)
        if browser is None:
            pytest.skip("no browser: apt-get install chromium, or playwright install chromium")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(trained, folder_of, page_of) -> Any:
    """The server's answers for a run of each rung and score."""
    folders = [folder_of(rung) for rung in RUNGS]
    return page_of(*folders, *(trained(*overrides)[0] for overrides in SCORES))


@pytest.fixture(scope="module")
def written(page, tmp_path_factory) -> Callable[..., Path]:
    """written(precision="float32"): a file with these runs and all words."""
    files: dict[str, Path] = {}

    def get(precision: Any = "float32") -> Path:
        if precision not in files:
            entries = [page.runs.entry(name) for name in page.runs.by_id]
            file = tmp_path_factory.mktemp("file") / "page.html"
            onefile.write_page(entries, file, words=None, precision=precision, reviews=12)
            files[precision] = file
        return files[precision]

    return get


@pytest.fixture
def open_file(browser) -> Iterator[Callable[..., Any]]:
    """open_file(path): a tab with the file, offline. Nothing fails, is blocked or is requested."""
    contexts: list[Any] = []
    problems: list[str] = []

    def get(file: Path, fragment: str = "", **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        context.set_offline(True)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(30_000)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("request", lambda request: requests_of(request, file, problems))
        tab.goto(f"{file.as_uri()}#{fragment}")
        settle(tab)
        return tab

    yield get
    for context in contexts:
        context.close()
    assert problems == []


def requests_of(request: Any, file: Path, problems: list[str]) -> None:
    if not request.url.startswith((file.as_uri(), "blob:", "data:")):
        problems.append(request.url)


def ask(tab: Any, kind: str, **values: Any) -> Any:
    """The answer of the models in the page, in the format of the server's."""
    facts, numbers = tab.evaluate(
        """async ([kind, values]) => {
          const [facts, numbers] = await modules["local.js"].binary(kind, values);
          return [facts, Array.from(numbers ?? [])];
        }""",
        [kind, values],
    )
    content = np.array(numbers, "<f4").tobytes()
    header = json.dumps(facts).encode("utf-8", "replace")
    return opened(len(header).to_bytes(4, "little") + header + content)


def random_text(rng: random.Random, pieces: int) -> str:
    parts = []
    for _ in range(rng.randrange(pieces)):
        piece = rng.choice(PIECES)
        turned = piece[::-1] if piece.isascii() else piece.upper()  # marks stay in order
        parts += [rng.choice((piece, piece, turned)), rng.choice(SPACES)]
    return "".join(parts)


@pytest.mark.parametrize("name", ["ptb", "whitespace", "basic_english"])
def test_words_of_10_000_texts_are_those_of_the_tokenizer(browser, written, open_file, name):
    rng = random.Random(1)
    texts = [random_text(rng, 24) for _ in range(10_000)]
    tokenizer = Tokenizer(name, [])
    expected = [[list(word[:3]) for word in tokenizer.words(text)] for text in texts]
    tab = open_file(written())
    found = tab.evaluate(
        """([rules, texts]) => {
          const tokenizer = new modules["tokens.js"].Tokenizer(rules);
          const list = ({ text, start, end }) => [text, start, end];
          return texts.map((text) => tokenizer.words(text).map(list));
        }""",
        [onefile.rules_of(name), texts],
    )
    different = [one for one in zip(texts, expected, found, strict=True) if one[1] != one[2]]
    assert different[:3] == []


def names_of(written_page: Any, tab: Any) -> dict[str, str]:
    """The id in the file of each run of the server."""
    labels = tab.evaluate("imdbattn.models.map(({ id, label }) => [id, label])")
    own = {label: name for name, label in labels}
    return {name: own[label] for name, label in written_page.runs.labels.items()}


def assert_same(found: Any, expected: Any, tolerance: float) -> None:
    """Whether two answers have the same facts, and numbers that differ by at most `tolerance`."""
    assert vars(found).keys() == vars(expected).keys()
    for name, value in vars(expected).items():
        assert_close(getattr(found, name), value, tolerance, name)


def assert_close(found: Any, expected: Any, tolerance: float, name: str) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), name
        for key, value in expected.items():
            assert_close(found[key], value, tolerance, f"{name}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), name
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_close(one, other, tolerance, f"{name}.{place}")
    elif isinstance(expected, (float, np.ndarray)):
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=1e-5, err_msg=name)
    else:
        assert found == expected, name


def test_answers_are_those_of_the_server(page, written, open_file):
    """Labels, words, shares, weights, entropies, and the arithmetic of a cell, with changes."""
    tab = open_file(written())
    for name, own in names_of(page, tab).items():
        for changes in CHANGES:
            one = {"words": [], "heads": [], "layers": [], "positions": False, "shuffle": None}
            message = {"text": TEXT, "changes": one | changes}
            if "layers" in changes and not page.net(page.runs.labels[name]).layers:
                continue
            expected = opened(page.ask("read", run=name, **message))
            assert_same(ask(tab, "read", run=own, **message), expected, 2e-5)
            if not expected.attentions:
                continue
            shown = expected.attentions[-1]
            cell = {"layer": shown.get("layer", 0), "head": shown["heads"], "query": 0}
            for padding in ({"padding": 0, "masked": True}, {"padding": 2, "masked": False}):
                row = message | cell | padding
                expected_row = opened(page.ask("cell", run=name, **row))
                assert_same(ask(tab, "cell", run=own, **row), expected_row, 5e-5)
        expected = opened(page.ask("positions", run=name, length=40))
        assert_same(ask(tab, "positions", run=own, length=40), expected, 2e-4)
