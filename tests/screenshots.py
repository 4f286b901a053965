"""Draws the screenshots of docs/explore.md: `python -m tests.screenshots runs/ladder
runs/reverse`.
"""

import sys
from pathlib import Path
from urllib.parse import urlencode

from hydra import compose, initialize_config_dir
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as Tab

from imdbattn.launch.hydra_config import plain_dict
from imdbattn.settings.keys import conf_dir
from imdbattn.settings.schema import validate_as
from imdbattn.tools.explore.settings import Explore

from .explorer import Page, Server, chromium, settle
from .processes import ROOT

OUT = ROOT / "docs" / "explore"
TEXT = "The film is not bad, it is great."


def draw(tab: Tab, address: str, run: dict[str, str]) -> None:
    """Writes changes.png, cell.png, long.png, positions.png and sequence.png."""

    def visit(*models: str, **state: str) -> None:
        tab.goto("about:blank")
        tab.goto(
            f"{address}#{urlencode({'runs': ','.join(run[model] for model in models), **state})}"
        )
        settle(tab)

    def part(name: str, selector: str) -> None:
        tab.locator(selector).first.screenshot(path=OUT / f"{name}.png")

    visit("mean", "base", "residual_pe")  # loads the models
    visit("mean", "base", "residual_pe", text=TEXT, words="3")
    top = tab.evaluate("document.getElementById('panels').offsetTop") - 8
    tab.screenshot(
        path=OUT / "changes.png",
        clip={"x": 0, "y": top, "width": 1280, "height": 330},
        full_page=True,
    )
    # Layer 1, head 1, "bad" -> "great", two padded positions, without mask.
    visit("residual_pe", text=TEXT, cells=f"{run['residual_pe']}:1.1.4.8.2.0")
    tab.locator(".strips").hover(position={"x": 200, "y": 40})
    part("cell", ".attention")
    visit("residual_pe", scale="own")
    tab.locator("#browser summary").click()
    tab.check("[name=wrong]")
    tab.check("[name=confident]")
    tab.check("[name=long]")
    tab.click("#next")
    settle(tab)
    tab.locator(".word").nth(120).hover()
    part("long", ".panel")
    visit("residual_pe")
    tab.locator("summary", has_text="Positions").click()
    tab.wait_for_selector("svg")
    part("positions", ".panel > details")
    visit("seq2seq_attention", source="ATTENTION")
    part("sequence", "#writers")


def draw_file(browser: Browser, address: str) -> None:
    """Writes page.png and phone.png, with the models of the file."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.goto(f"{address}#{urlencode({'text': TEXT})}")
    settle(tab)
    tab.locator(".panel").nth(1).locator(".word").nth(4).hover()
    tab.screenshot(
        path=OUT / "page.png", clip={"x": 0, "y": 0, "width": 1280, "height": 1190}, full_page=True
    )
    phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    phone.goto(f"{address}#{urlencode({'runs': 'residual_pe', 'text': TEXT})}")
    settle(phone)
    phone.screenshot(path=OUT / "phone.png")


def main() -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = plain_dict(compose("explore", overrides=[f"runs=[{','.join(sys.argv[1:])}]"]))
    page = Page(validate_as(Explore, cfg))
    run = {found.model: name for name, found in page.runs.by_id.items()}
    server = Server(page)
    OUT.mkdir(exist_ok=True)
    with sync_playwright() as started:
        browser = chromium(started)
        draw(browser.new_page(viewport={"width": 1280, "height": 900}), server.address, run)
        draw_file(browser, (OUT / "ladder.html").as_uri())
        browser.close()
    server.stop()
    print(*sorted(map(str, Path(OUT).glob("*.png"))), sep="\n")


if __name__ == "__main__":
    main()
