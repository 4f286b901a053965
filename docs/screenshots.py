"""Draws the pictures of docs/explore.md: `python -m docs.screenshots runs/ladder runs/reverse`."""

import sys
from pathlib import Path
from urllib.parse import urlencode

from hydra import compose, initialize_config_dir
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as Tab

from imdbattn.launch.hydra_config import plain_settings
from imdbattn.settings.command_settings import ExploreSettings
from imdbattn.settings.keys import conf_dir
from imdbattn.settings.schema import validate_as
from tests.explorer import Page, chromium, served, settle
from tests.processes import ROOT

OUT = ROOT / "docs" / "explore"
TEXT = "The film is not bad, it is great."


def visit(tab: Tab, address: str, runs: str, **state: str) -> None:
    tab.goto("about:blank")
    tab.goto(f"{address}#{urlencode({'runs': runs, **state})}")
    settle(tab)


def draw_file(browser: Browser, address: str) -> None:
    """Writes the pictures of the file, whose models have the names of the rungs as ids."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    three = "mean,base,residual_pe"
    visit(tab, address, three, text=TEXT)
    tab.locator(".panel").nth(1).locator(".word").nth(4).hover()
    tab.screenshot(
        path=OUT / "page.png", clip={"x": 0, "y": 0, "width": 1280, "height": 1190}, full_page=True
    )
    visit(tab, address, three, text=TEXT, words="3")
    top = tab.evaluate("document.getElementById('panels').offsetTop") - 8
    tab.screenshot(
        path=OUT / "changes.png",
        clip={"x": 0, "y": top, "width": 1280, "height": 400},
        full_page=True,
    )
    # Layer 1, head 1, "bad" -> "great", two padded positions, without mask.
    visit(tab, address, "residual_pe", text=TEXT, cells="residual_pe:1.1.4.8.2.0")
    tab.locator(".strips").hover(position={"x": 200, "y": 40})
    tab.locator(".attention").first.screenshot(path=OUT / "cell.png")
    visit(tab, address, "residual_pe")
    tab.locator("summary", has_text="Positions").click()
    tab.wait_for_selector("svg")
    tab.locator(".panel > details").first.screenshot(path=OUT / "positions.png")
    phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="dark")
    visit(phone, address, "residual_pe", text=TEXT)
    phone.screenshot(path=OUT / "phone.png")


def draw_long(tab: Tab, address: str, run: str) -> None:
    """Writes long.png: a long test review with a confident error."""
    visit(tab, address, run, scale="own")
    tab.locator("#browser summary").click()
    tab.check("[name=wrong]")
    tab.check("[name=confident]")
    tab.check("[name=long]")
    tab.click("#next")
    settle(tab)
    tab.locator(".word").nth(120).hover()
    tab.locator(".panel").first.screenshot(path=OUT / "long.png")


def main() -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = plain_settings(compose("explore", overrides=[f"runs=[{','.join(sys.argv[1:])}]"]))
    page = Page(validate_as(ExploreSettings, cfg))
    run = {found.model: name for name, found in page.runs.by_id.items()}
    OUT.mkdir(exist_ok=True)
    with served(page) as address, sync_playwright() as started:
        browser = chromium(started)
        draw_file(browser, (OUT / "ladder.html").as_uri())
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        draw_long(tab, address, run["residual_pe"])
        visit(tab, address, run["seq2seq_attention"], source="ATTENTION")
        tab.locator("#writers").screenshot(path=OUT / "sequence.png")
        browser.close()
    print(*sorted(map(str, Path(OUT).glob("*.png"))), sep="\n")


if __name__ == "__main__":
    main()
