"""Links of the exercises to lines of code are right, and all languages have the same code."""

import re
from pathlib import Path

import pytest

from tests.processes import ROOT

LINK = re.compile(r"\[`([^`]+)`\]\(([^)#]+)#L\d+\)")
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


LANGUAGES = ("zh", "fr")
PAGES = ("docs/exercises.md", *(f"docs/{language}/exercises.md" for language in LANGUAGES))


def numbered(page: str) -> str:
    """The text of a page with the current line numbers in its links to code."""

    def line(match: re.Match[str]) -> str:
        name, file = match[1], match[2]
        lines = (ROOT / page).parent.joinpath(file).read_text().splitlines()
        definition = re.compile(rf"\s*(class|def) {re.escape(name)}\b")
        found = [n for n, text in enumerate(lines, 1) if definition.match(text)]
        found += [n for n, text in enumerate(lines, 1) if name in text]
        return f"[`{name}`]({file}#L{found[0]})"

    return LINK.sub(line, (ROOT / page).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_a_link_to_a_line_names_what_is_there(page):
    assert len(LINK.findall((ROOT / page).read_text())) > 20
    assert numbered(page) == (ROOT / page).read_text(), (
        "python -m tests.docs.test_exercises writes the line numbers"
    )


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("english", ["README.md", "docs/exercises.md"])
def test_a_translated_page_has_the_same_code_blocks(english, language):
    translated = ROOT / "docs" / language / Path(english).name
    blocks = BLOCK.findall((ROOT / english).read_text())
    assert len(blocks) > 5
    assert BLOCK.findall(translated.read_text()) == blocks


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(numbered(page))
