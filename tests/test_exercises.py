"""docs/exercises.md and docs/zh: links to lines of code, and the same code blocks in both languages."""

import re

import pytest

from .processes import ROOT

LINK = re.compile(r"\[`([^`]+)`\]\(([^)#]+)#L(\d+)\)")
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/exercises.md", "docs/zh/exercises.md"])
def test_a_link_to_a_line_names_what_is_there(page):
    links = LINK.findall((ROOT / page).read_text())
    assert len(links) > 20
    for name, file, number in links:
        line = (ROOT / page).parent.joinpath(file).read_text().splitlines()[int(number) - 1]
        assert name in line, (name, file, number)


@pytest.mark.parametrize(
    ("english", "chinese"), [("README.md", "docs/zh/README.md"), ("docs/exercises.md", "docs/zh/exercises.md")]
)
def test_the_chinese_page_has_the_same_code_blocks(english, chinese):
    blocks = BLOCK.findall((ROOT / english).read_text())
    assert len(blocks) > 5
    assert BLOCK.findall((ROOT / chinese).read_text()) == blocks


def test_the_figures_of_the_exercises_are_small():
    assert sum(file.stat().st_size for file in (ROOT / "docs" / "exercises").iterdir()) < 300_000
