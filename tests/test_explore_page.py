"""The interactive page in a real browser: its numbers are `explain`'s, changes can be undone and shared, it can be used
with the keyboard alone, and problems (a deleted run, a stopped server, HTML in the text) are displayed.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import imdbattn

from .explorer import TEXT, WRITER, Server, chromium, settle

playwright = pytest.importorskip("playwright.sync_api", reason="no browser tests: pip install playwright")

RUNGS = ("mean", "learned_query", "base", "residual_pe", "residual_cls", "tuned")
LONG = " ".join(f"the great film was not dull , and actor word{number % 76} ." for number in range(60))  # 660 words
# The numbers that the page has: probabilities of the labels, shares of the words, and the values of each map.
NUMBERS = """async () => {
  const { panels } = await import("./main.js");
  return Object.fromEntries([...panels].map(([run, panel]) => [run, {
    probabilities: [...panel.element.querySelectorAll(".outcome [data-value]")].map((one) => Number(one.dataset.value)),
    shares: [...panel.element.querySelectorAll(".word[data-share]")].map((one) => Number(one.dataset.share)),
    maps: panel.maps.map((map) => Array.from(map.values)),
  }]));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = chromium(started)
        if browser is None:
            pytest.skip("no browser: apt-get install chromium, or playwright install chromium")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def serve() -> Iterator[Callable[[Any], Server]]:
    """serve(page): a server of this page until the end of the tests."""
    servers: list[Server] = []

    def get(page: Any) -> Server:
        servers.append(Server(page))
        return servers[-1]

    yield get
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def server(serve, page_of, folder_of) -> Server:
    return serve(page_of(*map(folder_of, (*RUNGS, WRITER[0]))))


@pytest.fixture
def run(server) -> dict[str, str]:
    """The id of each model's run."""
    return {found.model: name for name, found in server.page.runs.by_id.items()}


@pytest.fixture
def open_tab(browser, server, run) -> Iterator[Callable[..., Any]]:
    """open_tab("base", text=...): a tab that shows these rungs. No script fails and nothing is blocked.

    options: of the browser's context, such as viewport.
    """
    contexts, problems = [], []

    def get(*rungs: str, text: str = TEXT, fragment: str = "", at: Server = server, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(30_000)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: problems.append(message.text) if is_problem(message) else None)
        shown = {"runs": ",".join(run[rung] for rung in rungs)} if rungs else {}
        tab.goto(f"{at.address}#{urlencode(shown | {'text': text})}{fragment}")
        settle(tab)
        return tab

    yield get
    for context in contexts:
        context.close()
    assert problems == []


def is_problem(message: Any) -> bool:
    """Whether it is a script's error or something that the policy has blocked, not a refused request."""
    return message.type in ("error", "warning") and not re.search("status of 4|ERR_FAILED|ERR_CONN", message.text)


def visit(tab: Any, address: str) -> None:
    """Loads the page, also where only the part after # differs."""
    tab.goto("about:blank")
    tab.goto(address)
    settle(tab)


def set_text(tab: Any, text: str) -> None:
    """As pasting does."""
    tab.evaluate(
        """(text) => {
          const area = document.getElementById("text");
          area.value = text.replace("(lone surrogate)", "\\ud800");
          area.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        text,
    )
    settle(tab)


def numbers(tab: Any) -> dict[str, dict[str, list]]:
    return tab.evaluate(NUMBERS)


def close(a: dict[str, dict[str, list]], b: dict[str, dict[str, list]]) -> bool:
    """Whether all numbers of two pages are equal to 1e-6."""
    flat = [json.loads(json.dumps(one)) for one in (a, b)]
    return all(
        flat[0][run][kind] == pytest.approx(flat[1][run][kind], abs=1e-6)
        if kind != "maps"
        else [pytest.approx(map_, abs=1e-6) for map_ in flat[0][run][kind]] == flat[1][run][kind]
        for run in flat[0] | flat[1]
        for kind in ("probabilities", "shares", "maps")
    )


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numbers_on_the_page_are_those_of_explain(open_tab, run, folder_of):
    tab = open_tab(*RUNGS)
    found = numbers(tab)
    for rung in RUNGS:
        reading = imdbattn.load(folder_of(rung)).explain(TEXT).prediction
        one = found[run[rung]]
        assert one["probabilities"] == pytest.approx([*reading.probabilities.values()], abs=1e-6)
        assert one["shares"] == pytest.approx([share for *_, share in reading.words], abs=1e-6)
        maps = [weights for _, layer_HTT in reading.attention.numbered() for weights in layer_HTT]
        maps += [reading.attention.pooling] if reading.attention.pooling is not None else []
        assert len(one["maps"]) == len(maps)
        for values, expected in zip(one["maps"], maps, strict=True):
            assert values == pytest.approx(expected.ravel().tolist(), abs=1e-6)
        panel = tab.locator(f"[data-run={run[rung]}]")
        assert f"{100 * reading.probability:.1f} %" in panel.locator(".outcome").inner_text()
        assert panel.locator(".outcome strong").inner_text() == reading.label


def test_a_cell_has_the_color_and_the_text_of_its_weight(open_tab, run):
    tab = open_tab("residual_pe", text="the great film was dull .")
    tab.select_option("#scale", "own")
    values = numbers(tab)[run["residual_pe"]]["maps"][0]
    words = ["the", "great", "film", "was", "dull", "."]
    colors = tab.evaluate(
        """async () => {
          const { panels } = await import("./main.js");
          const map = [...panels.values()][0].maps[0];
          const pen = map.detail.getContext("2d");
          const at = (from, cell) => Math.round((from + (cell + 0.4) * map.cell) * devicePixelRatio);
          const { width, height } = map.detail;
          const { data } = pen.getImageData(0, 0, width, height);
          const start = (row, column) => 4 * (at(map.origin[1], row) * width + at(map.origin[0], column));
          const color = (row, column) => [...data.slice(start(row, column), start(row, column) + 3)];
          return map.rows.map((_, row) => map.columns.map((_, column) => color(row, column)));
        }"""
    )
    for row in range(6):
        for column in range(6):
            share = (values[6 * row + column] / max(values)) ** 0.5
            expected = [round(255 + share * (full - 255)) for full in (0xB3, 0x47, 0x00)]
            assert colors[row][column] == pytest.approx(expected, abs=1)
    canvas = tab.locator("canvas[aria-label^='layer 1, head 1']")
    canvas.focus()
    for _ in range(3):
        tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowDown")
    line = tab.locator(".at").first.inner_text()
    at = 6 + 2
    assert line.startswith(f"query “{words[1]}” → “{words[2]}” {100 * values[at]:.1f} %; largest:")


@pytest.mark.slow
def test_pointing_at_a_word_shades_the_others_by_its_attention(open_tab, run):
    tab = open_tab("base", "residual_cls")
    found = numbers(tab)
    for rung, cls in (("base", 0), ("residual_cls", 1)):
        panel = tab.locator(f"[data-run={run[rung]}]")
        words = panel.locator(".word")
        words.nth(4).hover()
        size = words.count() + cls
        name = "layer 3, head 1"
        assert f"attention of “the” in {name}" in panel.inner_text()
        row = found[run[rung]]["maps"][2][(4 + cls) * size + cls : (5 + cls) * size]
        shades = words.evaluate_all("all => all.map(one => Number(one.style.getPropertyValue('--s')))")
        assert shades == pytest.approx([value / max(row) for value in row], abs=1e-3)
        assert panel.locator(".word.query").inner_text() == "the"
        tab.mouse.move(1, 1)
        shares = found[run[rung]]["shares"]
        shades = words.evaluate_all("all => all.map(one => Number(one.style.getPropertyValue('--s')))")
        assert shades == pytest.approx([share / max(shares) for share in shares], abs=1e-3)


# --- changes ----------------------------------------------------------------------------------------------------------


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
        assert found["probabilities"] != pytest.approx(plain[run["residual_pe"]]["probabilities"], abs=1e-6)
        assert found["shares"] == pytest.approx([word["share"] for word in expected.words], abs=1e-6)
        before = tab.locator(f"{panel}.outcome .quiet").inner_text()
        assert before.startswith(f"without changes: {expected.before['label']}")
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
    flip("#reset")
    settle(tab)
    assert close(numbers(tab), plain)
    assert tab.locator("#reset").is_disabled()


@pytest.mark.slow
def test_the_address_contains_the_state(open_tab, run, browser):
    tab = open_tab("residual_pe", "mean", text="the great film , and a dull plot & 100 % \U0001f3ac")
    for selector in ("[data-part='2']", "[data-part='1.1']", ".word[data-place='1']", "#positions", "#shuffle"):
        tab.locator(selector).first.click()
    settle(tab)
    found, url = numbers(tab), tab.url
    other = open_tab()
    visit(other, url)
    assert close(numbers(other), found)
    assert other.input_value("#text") == tab.input_value("#text")
    tab.go_back()  # before shuffling
    settle(tab)
    assert "shuffled" not in tab.locator("#changes").inner_text()
    assert not close(numbers(tab), found)
    tab.go_forward()
    settle(tab)
    assert close(numbers(tab), found)
    broken = "#runs=foo,bar&off=x:9;y&words=-1,z&positions=&shuffle=1e9&scale=foo&beams=99999&penalty=x&text=%FF"
    visit(other, url.partition("#")[0] + broken)
    assert other.locator("#alert").is_hidden()
    assert other.locator(".panel").count() > 1  # the default ones


# --- texts ------------------------------------------------------------------------------------------------------------


def test_html_in_a_text_is_shown_as_text(open_tab):
    tab = open_tab("base", "residual_pe")
    html = '<img src=x onerror="document.title=1"><b>great</b> film &amp; <script>document.title=2</script>'
    set_text(tab, f"{html} (lone surrogate) \0")
    assert tab.title() == "Attention explorer"
    assert tab.locator(".review img, .review b, .review script, .panels script").count() == 0
    shown = tab.locator(".review").first.text_content()
    assert shown.startswith('<img src=x onerror="document.title=1"><b>great</b> film &amp; <script>')
    tab.locator(".word", has_text="great").first.click()
    settle(tab)
    with tab.expect_download() as download:
        tab.click("#save")
    saved = Path(download.value.path()).read_text()
    assert "<script" not in saved
    assert "<b>great" not in saved


@pytest.mark.slow
def test_a_long_review_has_an_overview_that_moves_the_legible_part(open_tab, run):
    tab = open_tab("residual_pe", text=LONG)
    assert tab.locator(".word").count() == 512
    overview, detail = tab.locator("canvas.overview").first, tab.locator(".map canvas").first
    assert overview.is_visible()
    place = """async () => {
      const { panels } = await import("./main.js");
      const map = [...panels.values()][0].maps[0];
      return [map.top, map.left, map.height, map.rows.length];
    }"""
    top, left, height, rows = tab.evaluate(place)
    assert (top, left, rows) == (0, 0, 512)
    assert height < 40
    overview.scroll_into_view_if_needed()
    box = overview.bounding_box()
    tab.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + 0.5 * box["height"])
    top, left, *_ = tab.evaluate(place)
    assert abs(top + height / 2 - 256) < 6
    assert abs(left + height / 2 - 384) < 6
    tab.locator(".word").nth(100).hover()
    top, *_ = tab.evaluate(place)
    assert top <= 100 < top + height
    assert detail.bounding_box()["width"] < 420


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_deleted_while_shown_is_named_and_the_others_work(open_tab, serve, page_of, folder_of, tmp_path, run):
    for rung in ("mean", "base"):
        shutil.copytree(folder_of(rung), tmp_path / rung)
    other = serve(page_of(tmp_path))
    tab = open_tab(at=other)
    shutil.rmtree(tmp_path / "mean")
    tab.fill("#text", "a fine film")
    settle(tab)
    assert "is no longer a finished run" in tab.locator(".panel .error").first.inner_text()
    assert tab.locator(".panel").nth(1).locator(".word").count() == 3


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_reported_until_it_answers(open_tab):
    tab = open_tab("base")
    tab.route("**/api/*", lambda route: route.abort())
    tab.fill("#text", "a fine film")
    tab.wait_for_selector("#alert:visible")
    assert tab.locator("#alert").inner_text().startswith("The server does not answer: start it again")
    assert tab.input_value("#text") == "a fine film"
    tab.unroute("**/api/*")
    tab.fill("#text", "a fine film .")
    settle(tab)
    assert tab.locator("#alert").is_hidden()
    assert tab.locator(".word").count() == 4


# --- test reviews, order probe, positions, encoder-decoder ------------------------------------------------------------


@pytest.mark.slow
def test_the_next_test_review_is_shown_with_its_label(open_tab, server, run):
    tab = open_tab("mean", "base")
    tab.locator("#browser summary").click()
    tab.check("[name=wrong]")
    tab.click("#next")
    settle(tab)
    found = tab.locator("#match").inner_text()
    answer = server.page.ask("next", run=run["mean"], runs=[run["base"]], filters={"wrong": True})
    assert tab.input_value("#text") == answer["text"]
    assert found.startswith(f"Label: {answer['label']}. Review 1 of {answer['matching']} that match, of {answer['of']}")
    assert tab.locator(f"[data-run={run['mean']}] .outcome strong").inner_text() != answer["label"]
    tab.fill("[name=contains]", "nowhere-to-be-found")
    tab.click("#next")
    settle(tab)
    assert "fulfills these conditions" in tab.locator("#match").inner_text()
    assert tab.input_value("#text") == answer["text"]


@pytest.mark.slow
def test_the_order_probe_shows_that_a_bag_of_words_is_blind(open_tab, run):
    tab = open_tab("base", "residual_pe")
    tab.locator("#probe summary").click()
    tab.click("#pair")
    tab.wait_for_selector("#pairs table")
    first, second = (table.inner_text() for table in tab.locator("#pairs table").all())
    assert first.splitlines()[0] == second.splitlines()[0]
    assert first.splitlines()[0].startswith("base")
    sentence = tab.locator(".sentence").nth(1)
    text = sentence.inner_text()
    sentence.click()
    settle(tab)
    assert tab.input_value("#text") == text


@pytest.mark.slow
def test_positions_are_shown_for_models_that_have_them(open_tab, run):
    tab = open_tab("base", "residual_pe", "tuned")
    details = {rung: tab.locator(f"[data-run={run[rung]}] details", has_text="Positions") for rung in RUNGS}
    shown = {rung: details[rung] for rung in ("residual_pe", "tuned")}
    assert tab.locator(f"[data-run={run['base']}] summary", has_text="Positions").is_hidden()
    for details in shown.values():
        details.locator("summary").last.click()
        details.locator("svg").first.wait_for()
    assert shown["residual_pe"].locator("canvas").count() == 2


@pytest.mark.slow
def test_the_encoder_decoder_is_shown_step_by_step(open_tab, server, run):
    tab = open_tab(WRITER[0])
    assert tab.locator("#classifiers").is_hidden()
    tab.fill("#source", "ABCA")
    tab.fill("#beams", "4")
    settle(tab)
    expected = server.page.runs.model(run[WRITER[0]]).predict(["ABCA"], beams=4)[0]
    panel = tab.locator(".panel")
    assert panel.get_attribute("data-output") == expected.output
    assert float(panel.get_attribute("data-probability")) == pytest.approx(expected.probability, abs=1e-6)
    rows = panel.locator("tbody tr").all_inner_texts()
    assert len(rows) == 4
    answer = server.page.ask("write", run=run[WRITER[0]], text="ABCA", beams=4)
    assert [row.split("\t")[1] for row in rows] == [f"{beam['log_probability']:.3f}" for beam in answer["beams"]]
    for number, step in enumerate(answer["steps"], 1):
        assert panel.locator(".quiet", has_text=f"Step {number} of {len(answer['steps'])}").count() == 1
        shown = panel.locator("[data-value]").evaluate_all("all => all.map(one => Number(one.dataset.value))")
        assert shown == pytest.approx([share for _, share in step["alternatives"]], abs=1e-6)
        panel.locator("[data-step=next]").click()
    with tab.expect_download() as download:
        tab.click("#save")
    assert expected.output in Path(download.value.path()).read_text()


# --- the saved page ---------------------------------------------------------------------------------------------------


# --- for everybody ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_control_has_a_name_for_screen_readers(open_tab, run):
    tab = open_tab("base", WRITER[0])
    for details in tab.locator("details").all():
        details.evaluate("one => one.open = true")
    nodes = tab.context.new_cdp_session(tab).send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "checkbox", "textbox", "combobox", "spinbutton", "application", "article", "img"}
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    controls = [one for one in named if one[0] in roles]
    assert {role for role, _ in controls} >= {"button", "checkbox", "textbox", "combobox", "spinbutton", "application"}
    assert [role for role, name in controls if not name.strip()] == []
    assert ("application", "layer 1, head 1: arrow keys move, Enter pins a query") in controls


@pytest.mark.slow
def test_the_keyboard_alone_reaches_and_changes_everything(open_tab, run):
    tab = open_tab("residual_pe", text="the great film was dull .")
    plain = numbers(tab)
    seen: list[str] = []
    describe = """() => {
      const one = document.activeElement;
      const ring = getComputedStyle(one).outlineStyle;
      return [one.id || one.dataset.part || one.dataset.place || one.getAttribute("aria-label") || one.tagName, ring];
    }"""
    for _ in range(60):
        tab.keyboard.press("Tab")
        name, ring = tab.evaluate(describe)
        if name == "BODY":
            break
        assert ring != "none", f"{name} has the focus but no ring"
        seen.append(name)
    wanted = {"copy", "save", "text", "positions", "shuffle", "scale", "1", "1.1", "1.2", "3.2", "0"}
    assert wanted <= set(seen), seen
    tab.locator(".word").first.focus()
    tab.keyboard.press("ArrowRight")
    assert tab.evaluate("document.activeElement.dataset.place") == "1"
    tab.keyboard.press("Enter")
    settle(tab)
    assert tab.locator(".word.removed").inner_text() == "great"
    assert tab.evaluate("document.activeElement.dataset.place") == "1"  # the focus stays
    tab.keyboard.press(" ")
    settle(tab)
    assert close(numbers(tab), plain)
    tab.locator("[data-part='1.1']").focus()
    tab.keyboard.press(" ")
    settle(tab)
    assert not close(numbers(tab), plain)
    assert tab.evaluate("document.activeElement.dataset.part") == "1.1"
    canvas = tab.locator("canvas[aria-label^='layer 2, head 1']")
    canvas.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")  # keeps the query
    tab.keyboard.press("Tab")
    assert "attention of “the”" in tab.locator(".panel").inner_text()
    assert tab.locator(".word.query").inner_text() == "the"
    canvas.focus()
    tab.keyboard.press("Escape")
    assert "by attention rollout" in tab.locator(".panel").inner_text()
