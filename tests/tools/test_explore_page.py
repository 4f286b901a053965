"""The interactive page in a real browser, with its server: the controls change the numbers as the
server does, and changes can be undone and shared.
"""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from ..explorer import TEXT, WRITER, Server, settle

playwright = pytest.importorskip(
    "playwright.sync_api", reason="no browser tests: pip install playwright"
)

RUNGS = ("mean", "learned_query", "base", "residual_pe", "residual_cls", "tuned")
# The numbers that the page has: probabilities of the labels, shares of the words, and the values of
# each map.
NUMBERS = """async () => {
  const { panels } = await import("./main.js");
  return Object.fromEntries([...panels].map(([run, panel]) => [run, {
    probabilities: [...panel.element.querySelectorAll(".outcome [data-value]")]
        .map((one) => Number(one.dataset.value)),
    shares: [...panel.element.querySelectorAll(".word[data-share]")]
        .map((one) => Number(one.dataset.share)),
    maps: panel.maps.map((map) => Array.from(map.values)),
  }]));
}"""


@pytest.fixture(scope="module")
def server(page_of, folder_of) -> Iterator[Server]:
    server = Server(page_of(*map(folder_of, (*RUNGS, WRITER[0]))))
    yield server
    server.stop()


@pytest.fixture
def run(server) -> dict[str, str]:
    """The id of each model's run."""
    return {found.model: name for name, found in server.page.runs.by_id.items()}


@pytest.fixture
def open_tab(open_page, server, run) -> Callable[..., Any]:
    """open_tab("base"): a tab that shows these rungs."""

    def get(*rungs: str, **options: Any) -> Any:
        shown = {"runs": ",".join(run[rung] for rung in rungs)} if rungs else {}
        return open_page(server.address, urlencode(shown | {"text": TEXT}), **options)

    return get


def visit(tab: Any, address: str) -> None:
    """Loads the page, also where only the part after # differs."""
    tab.goto("about:blank")
    tab.goto(address)
    settle(tab)


def numbers(tab: Any) -> dict[str, dict[str, list]]:
    return tab.evaluate(NUMBERS)


def close(a: dict[str, dict[str, list]], b: dict[str, dict[str, list]]) -> bool:
    """Whether all numbers of two pages are equal to 1e-6."""

    def flat(panel: dict[str, list]) -> list[float]:
        return [
            *panel["probabilities"],
            *panel["shares"],
            *(value for map_ in panel["maps"] for value in map_),
        ]

    return a.keys() == b.keys() and all(
        flat(a[run]) == pytest.approx(flat(b[run]), abs=1e-6) for run in a
    )


@pytest.mark.slow
def test_each_control_changes_the_numbers_and_can_be_undone(open_tab, server, run):
    tab = open_tab("residual_pe", "tuned")
    plain = numbers(tab)

    def flip(selector: str) -> None:
        tab.locator(selector).first.click()

    panel = f"[data-run={run['residual_pe']}] "
    cases = {
        "head": (f"{panel}[data-part='1.2']", {"heads": [[1, 2]]}),
        "layer": (f"{panel}[data-part='3']", {"layers": [3]}),
        "word": (f"{panel}.word[data-place='2']", {"words": [2]}),
        "positions": ("#positions", {"positions": True}),
    }
    label = server.page.runs.labels[run["residual_pe"]]
    for selector, changes in cases.values():
        flip(selector)
        settle(tab)
        expected = server.page.read(label, **changes)
        found = numbers(tab)[run["residual_pe"]]
        assert found["probabilities"] == pytest.approx([*expected.probabilities.values()], abs=1e-6)
        assert found["probabilities"] != pytest.approx(
            plain[run["residual_pe"]]["probabilities"], abs=1e-6
        )
        assert found["shares"] == pytest.approx(
            [word["share"] for word in expected.words], abs=1e-6
        )
        before = tab.locator(f"{panel}.outcome .quiet").inner_text()
        assert before.startswith(
            f"without changes: {max(expected.before, key=expected.before.get)}"
        )
        flip(selector)
        settle(tab)
        assert close(numbers(tab), plain)
    for selector, _ in cases.values():
        flip(selector)
    flip("#shuffle")
    settle(tab)
    assert not close(numbers(tab), plain)
    facts = tab.locator("#changes").inner_text()
    assert facts == "2 layers or heads disabled; 1 word removed; words shuffled, seed 1"
    other, found = open_tab(), numbers(tab)
    visit(other, tab.url)  # the address contains the state
    assert close(numbers(other), found)
    tab.go_back()  # before shuffling
    settle(tab)
    assert "shuffled" not in tab.locator("#changes").inner_text()
    tab.go_forward()
    settle(tab)
    assert close(numbers(tab), found)
    flip("#reset")
    settle(tab)
    assert close(numbers(tab), plain)
    assert tab.locator("#reset").is_disabled()
