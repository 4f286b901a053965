"""The interactive page in a real browser, with its server."""

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.explorer import WRITER, Page, served, settle

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no browser tests: pip install playwright"
)


@pytest.fixture
def page(page_of, folder_of) -> Page:
    return page_of(folder_of("mean"), folder_of("base"))


@pytest.fixture
def address(page) -> Iterator[str]:
    with served(page) as address:
        yield address


def test_the_next_review_is_one_that_meets_all_conditions(page, address, open_page):
    runs = {run.model: run for run in page.runs.by_id.values()}
    own, other = (runs[name].predictions("test") for name in ("mean", "base"))
    conditions = {
        "wrong": ~own.right_N,
        "disagree": own.predicted_N != other.predicted_N,
        "confident": own.confidence_N >= 0.9,
    }
    tab = open_page(address, urlencode({"runs": ",".join(page.runs.by_id)}))
    for condition, chosen_N in conditions.items():
        tab.locator("#browser summary").click()
        tab.select_option("#browsed", label="mean, seed 1")
        tab.locator(f"#browser input[name={condition}]").check()
        rows = own.rows_N[chosen_N].tolist()
        assert rows or condition == "confident"
        for place, row in enumerate([*rows[:2], *rows[:1]][: len(rows)], 1):
            tab.locator("#next" if place < 3 else "#previous").click()
            settle(tab)
            number = place if place < 3 else 1
            expected = f"Review {number} of {len(rows)} that match, of {len(chosen_N)}; row"
            assert f"{expected} {row}." in tab.locator("#match").inner_text()
            assert tab.locator("#text").input_value() == runs["mean"].texts("test", [row])[0]
        tab.reload()
        settle(tab)


def test_a_model_without_its_layers_shows_their_boxes(page, address, open_page):
    base = page.run("base")
    tab = open_page(address, urlencode({"runs": base, "off": f"{base}:1,2,3"}))
    boxes = tab.locator("[data-part]")
    assert boxes.count() == 3  # of layers; there are no heads
    boxes.first.check()
    settle(tab)
    assert boxes.count() == 4


def test_the_steps_and_beams_of_an_encoder_decoder_are_shown(page_of, folder_of, open_page):
    page = page_of(folder_of(WRITER))
    expected = page.ask("write", run=page.run(WRITER), text="FEDC", beams=3)
    with served(page) as address:
        panel = open_page(address, urlencode({"source": "FEDC"})).locator("#written")
        for number, step in enumerate(expected.steps, 1):
            text = panel.inner_text()
            assert f"Step {number} of {len(expected.steps)}" in text
            symbol, share = step["alternatives"][0]
            assert f"{symbol}\n{100 * share:.1f} %" in text
            panel.get_by_text("Next step").click()
        for beam in expected.beams:
            assert f"{beam['log_probability']:.3f}\t{beam['score']:.3f}" in text
