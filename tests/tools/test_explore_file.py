"""One HTML file that computes trained models in the browser: its words are the tokenizer's, its
numbers are those of the Python package, and it needs neither a server nor the network.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import imdbattn
from imdbattn.data.tokenizer import FIRST_WORD, Tokenizer
from imdbattn.errors import UserError
from imdbattn.report.finished_runs import read_run
from imdbattn.tools.explore import onefile
from imdbattn.tools.explore.changes import Changes
from tests.explorer import TEXT, opened, settle
from tests.marks import slow

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no browser tests: pip install playwright"
)

SCORE = "model.net.layer.score._target_=imdbattn.nn"
RUNGS = ("mean", "learned_query", "text_query", "label_query", "base", "residual_pe", "tuned")
RUNGS += ("residual_cls", "residual_heads", "residual_learned")
RUNGS += ("residual_rope", "residual_relative")
SCORES = (
    ("base", f"{SCORE}.scores.Dot"),
    ("base", f"{SCORE}.scores.Bilinear"),
    ("residual_pe", f"{SCORE}.scores.Additive", "model.net.layer.heads=5"),
    ("residual_pe", f"{SCORE}.beyond.attention.Uniform"),
)
UNCHANGED = Changes().model_dump()
CHANGES = (
    {},
    {"heads": [[1, 1]], "layers": [2], "positions": True, "words": [2], "shuffle": 5},
)
# Pieces of texts that the tokenizers split, normalize or replace.
LINE = (
    "The film great movie don't it's I'm we'll o'brien 'em '90s u.s. e.g. mr. Dr. etc. 1,000 3.5"
    " 10/10 well-done -- --- .. ... .... ! ?? ; : ( ) [x] <br /> <BR/> <br> & &amp; \" `` '' @ # %"
    " ½ ¨ café cafe\u0301 NAÏVE na\u00efve İstanbul ΟΔΟΣ ΣΑΣ ﬁlm ﬀ ﬆ ｆｕｌｌ！ ＡＢＣ"
    " 中文 電影 日本語 한국어"
    " \u1112\u1161\u11ab \U0001f3ac \U0001f600 \U0001f468\u200d\U0001f469 \x91quoted\x92 \x93a\x94"
    " \x96 \x97 \x85 … …… ‘a’ “b” – — \u0301 a\u0323\u0301 \ufffd \u00ad \u200b ß ẞ ÆON ǅ"
    " didn't' n't can't.' rock'n'roll"
)
PIECES = LINE.split(" ")
SPACES = (" ", " ", " ", "", "", "\n", "\t", "\u00a0", "\u3000", "\x85", "\u2028")


@pytest.fixture(scope="module")
def page(trained, folder_of, page_of) -> Any:
    """The server's answers for a run of each rung and score."""
    folders = [folder_of(rung) for rung in RUNGS]
    return page_of(*folders, *(trained(*overrides)[0] for overrides in SCORES))


@pytest.fixture(scope="module")
def written(page, tmp_path_factory) -> Callable[..., Path]:
    """written("float32"): a file with a run of each rung in RUNGS, and all words."""

    @cache
    def get(precision: Any = "float32") -> Path:
        names = [name for name, run in page.runs.by_id.items() if run.model in RUNGS]
        models = [page.runs.page_model(name) for name in names]
        file = tmp_path_factory.mktemp("file") / "page.html"
        onefile.write_page(models, file, words=None, precision=precision, reviews=12)
        return file

    return get


@pytest.fixture
def open_file(open_page) -> Callable[..., Any]:
    """open_file(path): a tab with the file, offline."""
    return lambda file, *more, **options: open_page(file.as_uri(), *more, offline=True, **options)


def ask(tab: Any, kind: str, **values: Any) -> Any:
    """The answer of the models in the page, in the format of the server's."""
    facts, numbers = tab.evaluate(
        """async ([kind, values]) => {
          const [facts, numbers] = await modules["api.js"].ask(kind, values);
          return [facts, Array.from(numbers ?? [])];
        }""",
        [kind, values],
    )
    return opened(facts, np.array(numbers, "<f4"))


def random_text(rng: random.Random, pieces: int) -> str:
    parts = []
    for _ in range(rng.randrange(pieces)):
        piece = rng.choice(PIECES)
        turned = piece[::-1] if piece.isascii() else piece.upper()  # marks stay in order
        parts += [rng.choice((piece, piece, turned)), rng.choice(SPACES)]
    return "".join(parts)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("ptb", 500),
        slow("ptb", 10_000),
        slow("whitespace", 10_000),
        slow("basic_english", 10_000),
    ],
)
def test_words_of_random_texts_are_those_of_the_tokenizer(browser, written, open_file, name, count):
    """Texts of up to 23 of 95 pieces: each piece is in dozens of 500 texts."""
    rng = random.Random(1)
    texts = [random_text(rng, 24) for _ in range(count)]
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


def names_of(page: Any, tab: Any, rungs: Sequence[str] = RUNGS) -> dict[str, str]:
    """The id in the file of each run of these rungs, by its id in the server."""
    labels = tab.evaluate("imdbattn.models.map(({ id, label }) => [id, label])")
    own = {label: name for name, label in labels}
    names = [name for name, run in page.runs.by_id.items() if run.model in rungs]
    return {name: own[page.runs.labels[name]] for name in names}


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
            message = {"text": TEXT, "changes": UNCHANGED | changes}
            if "layers" in changes and not page.runs.predictor(name).net.layers:
                continue
            expected = page.ask("read", run=name, **message)
            assert_same(ask(tab, "read", run=own, **message), expected, 2e-5)
            if not expected.attentions:
                continue
            shown = expected.attentions[-1]
            cell = {"layer": shown.get("layer", 0), "head": shown["heads"], "query": 0}
            for padding in ({"padding": 0, "masked": True}, {"padding": 2, "masked": False}):
                row = message | cell | padding
                expected_row = page.ask("cell", run=name, **row)
                assert_same(ask(tab, "cell", run=own, **row), expected_row, 5e-5)
        expected = page.ask("positions", run=name, length=40)
        assert_same(ask(tab, "positions", run=own, length=40), expected, 2e-4)
        tested = ask(tab, "reviews", run=own)
        assert len(tested.reviews) == 12
        columns = zip(tested.reviews, tested.labels, tested.probabilities, strict=True)
        for review, label, probability in columns:
            found = ask(tab, "read", run=own, text=review["text"], changes=UNCHANGED)
            assert found.label == label
            assert found.probability == pytest.approx(probability, abs=1e-4)


def texts_200() -> list[str]:
    """200 texts: empty, unknown words only, 700 words, emoji, accents, HTML and mixed case."""
    rng = random.Random(2)
    fixed = ["", " \n ", "qwxz zzzq \U0001f3ac", " ".join(rng.choices(TEXT.split(), k=700))]
    fixed += ["<script>alert(1)</script> & <b>great</b> <br /> film &amp;", "GREAT Movie"]
    mixed = [*PIECES, *TEXT.split() * 4]
    others = [" ".join(rng.choices(mixed, k=rng.randrange(120))) for _ in range(194)]
    return fixed + others


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-4), ("float16", 2e-3)])
def test_probabilities_of_200_texts_are_those_of_predict(
    page, written, open_file, precision, tolerance
):
    tab = open_file(written(precision))
    texts = texts_200()
    for name, own in names_of(page, tab).items():
        model = imdbattn.load(page.runs.by_id[name].folder)
        expected = [list(one.probabilities.values()) for one in model.predict(texts)]
        found = tab.evaluate(
            """([texts, model]) => Promise.all(texts.map(
              async (text) => (await imdbattn.classify(text, model)).probabilities))""",
            [texts, own],
        )
        difference = np.abs(np.array(found) - np.array(expected)).max()
        assert difference <= tolerance, (name, difference)


def test_classify_gives_labels_words_probabilities_and_weights(page, written, open_file):
    tab = open_file(written())
    name, own = next(iter(names_of(page, tab, ("residual_pe",)).items()))
    found = tab.evaluate("([text, model]) => imdbattn.classify(text, model)", [TEXT, own])
    model = imdbattn.load(page.runs.by_id[name].folder)
    expected = model.explain(TEXT)
    assert found["labels"] == model.labels
    assert found["tokens"] == expected.words
    assert found["label"] == expected.prediction.output
    assert sum(found["probabilities"]) == pytest.approx(1)
    weights_LHQK = np.array([one["heads"] for one in found["attention"][:3]])
    assert weights_LHQK.shape[2:] == (len(found["keys"]),) * 2
    np.testing.assert_allclose(weights_LHQK.sum(-1), 1, atol=1e-5)
    assert "no model" in tab.evaluate("imdbattn.classify('x', 'other').catch((e) => e.message)")


def test_probabilities_have_the_order_of_labels_that_are_numbers(
    page, tmp_path, open_file, monkeypatch
):
    """JavaScript moves the keys 0, 1, 2 of an object to its start."""
    model = page.runs.page_model(next(iter(page.runs.by_id)))
    expected = model.predictor.classify([TEXT])[0][0].tolist()
    monkeypatch.setitem(model.predictor.metadata, "labels", ["-1", "1"])
    onefile.write_page([model], tmp_path / "page.html", words=None)
    found = open_file(tmp_path / "page.html").evaluate("(text) => imdbattn.classify(text)", TEXT)
    assert found["labels"] == ["-1", "1"]
    assert found["probabilities"] == pytest.approx(expected, abs=2e-3)


def test_each_model_of_a_file_has_an_id_of_its_own(page, tmp_path):
    model = page.runs.page_model(next(iter(page.runs.by_id)))
    models = [replace(model, name=name) for name in ("mine-2", "mine", "mine")]
    facts = onefile.write_page(models, tmp_path / "page.html", words=50)
    assert [about["id"] for about in facts["models"]] == ["mine-2", "mine", "mine-3"]


def test_a_file_works_offline_on_a_phone_and_restores_its_link(page, written, open_file):
    tab = open_file(written())
    residual = next(iter(names_of(page, tab, ("residual_pe",)).values()))
    state = {"runs": residual, "text": TEXT, "cells": f"{residual}:1.1.4.2.0.1", "lang": "zh"}
    phone = open_file(
        written(), urlencode(state), viewport={"width": 390, "height": 844}, color_scheme="dark"
    )
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    assert phone.locator("h1").inner_text() == "注意力浏览器"
    assert phone.locator(".cell [data-step]").count() == 5
    before = phone.locator(".panel").get_attribute("data-probability")
    phone.locator(".word[data-place='2']").focus()
    phone.keyboard.press("Enter")
    settle(phone)
    assert phone.locator(".panel").get_attribute("data-probability") != before
    tab.goto("about:blank")
    tab.goto(phone.url)
    settle(tab)
    after = phone.locator(".panel").get_attribute("data-probability")
    assert tab.locator(".panel").get_attribute("data-probability") == after
    assert tab.locator(".word.removed").count() == 1
    tab.locator("[data-part='1.2']").first.click()  # without this head
    settle(tab)
    assert tab.locator(".panel").get_attribute("data-probability") != after
    tab.select_option("#language", "en")
    tab.wait_for_function("document.querySelector('h1').textContent === 'Attention explorer'")
    settle(tab)
    assert tab.locator(".word.removed").count() == 1
    tab.locator("#browser summary").click()
    tab.locator("#next").click()
    settle(tab)
    assert "Review 1 of 12" in tab.locator("#match").inner_text()
    tab.locator("#probe summary").click()
    tab.locator("#pair").click()
    tab.wait_for_selector(".sentence")


def test_names_and_texts_of_a_colleague_cannot_put_html_into_the_file(
    page, tmp_path, open_file, monkeypatch
):
    html = '</script><img src=x onerror="document.title=1"><script>document.title=2</script>'
    model = page.runs.page_model(next(iter(page.runs.by_id)))
    predictor = model.predictor
    monkeypatch.setitem(predictor.metadata, "labels", [html, "pos"])
    review = {"row": 0, "text": html, "label": html}
    monkeypatch.setattr(onefile, "test_reviews", lambda run, predictions: [review])
    bad = onefile.PageModel(html, predictor, model.run)
    onefile.write_page([bad], tmp_path / "page.html", words=None)
    source = (tmp_path / "page.html").read_text("utf-8")
    assert "onerror=" not in source
    tab = open_file(tmp_path / "page.html", urlencode({"text": html}))
    assert tab.title() == "Attention explorer"
    assert tab.locator("main img, main script").count() == 0
    assert tab.locator(".panel h3").inner_text() == html
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', source)[1]
    assert "unsafe" not in policy
    assert not re.search(r"https?:|'self'|\*", policy)


def test_the_command_writes_one_file_and_names_what_it_leaves_out(shell, folder_of, tmp_path):
    folders = f"runs=[{folder_of('mean')},{folder_of('convolved')}]"
    done = shell("explore", folders, "out=page.html", cwd=tmp_path)
    assert "Convolution cannot be computed in the browser" in done.stderr
    assert "test accuracy" in done.stdout
    assert onefile.GENERATOR_TAG in (tmp_path / "page.html").read_text()
    (tmp_path / "notes.html").write_text("mine")
    refused = shell("explore", folders, "out=notes.html", cwd=tmp_path, status=2)
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert (tmp_path / "notes.html").read_text() == "mine"


def test_a_model_writes_its_page_and_an_export_too(
    folder_of, tmp_path, open_file, caplog, monkeypatch
):
    model = imdbattn.load(folder_of("residual_pe"))
    facts = model.page(tmp_path / "page.html", words=50)
    assert facts["models"][0]["words"] == 50
    page = onefile.PageModel("", model.predictor, read_run(model.folder))
    assert onefile.chosen_words([page], 50).min() >= FIRST_WORD  # <unk> is no word
    model.page(tmp_path / "page.html", words=50)  # replaces its own page
    model.export(tmp_path / "export")
    monkeypatch.chdir(Path(model.settings["data"]["vectors"]["path"]).parent)
    imdbattn.load(tmp_path / "export").page(tmp_path / "export.html")
    assert "reviews have other ids: the vectors are those of an export" in caplog.text
    for name in ("page", "export"):
        tab = open_file(tmp_path / f"{name}.html", urlencode({"text": "qwxz great"}))
        assert "1 word not in the model's vocabulary" in tab.locator(".panel").inner_text()
    with pytest.raises(UserError, match="Convolution"):
        imdbattn.load(folder_of("convolved")).page(tmp_path / "other.html")


def test_vectors_that_float16_cannot_hold_are_refused(folder_of, tmp_path, monkeypatch):
    model = imdbattn.load(folder_of("mean"))
    embedding = model.predictor.net.embedding
    monkeypatch.setattr(embedding, "vectors_VD", embedding.vectors_VD * 1e6)
    with pytest.raises(UserError, match="too large for float16: use float32"):
        model.page(tmp_path / "page.html")
    assert model.page(tmp_path / "page.html", precision="float32")["size"]


def test_a_file_with_fewer_words_has_their_trained_vectors(folder_of, tmp_path, open_file):
    model = imdbattn.load(folder_of("tuned"))
    page = onefile.PageModel("", model.predictor, read_run(model.folder))
    rows = onefile.chosen_words([page], 50).tolist()
    words = [model.predictor.vectors.words[row - FIRST_WORD] for row in rows]
    text = " ".join(filter(str.isalpha, words))
    facts = model.page(tmp_path / "page.html", words=50, precision="float32")
    request = {"run": facts["models"][0]["id"], "text": text, "changes": UNCHANGED}
    found = ask(open_file(tmp_path / "page.html"), "read", **request)
    expected = model.predict(text)[0].probabilities
    assert found.probabilities == pytest.approx(dict(expected), abs=1e-6)
