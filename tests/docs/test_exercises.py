"""Links of the exercises to lines of code are right, all languages have the same code, and the
students' sheet has all questions and commands of the exercises, and no answer.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

LINK = re.compile(r"\[`([^`]+)`\]\(([^)#]+)#L\d+\)")
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^###? .*$", re.MULTILINE)
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


def sheet(language: str) -> str:
    command = [sys.executable, str(ROOT / "docs" / "student_sheet.py"), language]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("language", "page"), zip(("en", *LANGUAGES), PAGES, strict=True))
def test_the_sheet_has_all_questions_and_commands_and_no_answer(language, page):
    page, found = (ROOT / page).read_text("utf-8"), sheet(language)
    blocks = BLOCK.findall(page)
    assert BLOCK.findall(found) == [one for one in blocks if not one.startswith("```text")]
    assert HEADING.findall(BLOCK.sub("", found)) == HEADING.findall(BLOCK.sub("", page))
    outputs = [one for one in blocks if one.startswith("```text")]
    lines = [line for one in outputs for line in one.splitlines()[1:-1] if len(line) > 3]
    assert len(lines) > 40
    assert [line for line in lines if line in found.splitlines()] == []
    prose = BLOCK.sub("", found)
    assert not re.search(r"\d ?%|±|!\[|#L\d", prose), "a result, a figure, or a line of code"
    # every paragraph after a section's first block is a part of its answer
    for section in re.split(r"^(?=###? )", BLOCK.sub("\0", page), flags=re.MULTILINE):
        _, block, answer = section.partition("\0")
        for paragraph in re.split(r"\n\n|\0", answer) if block else ():
            assert not paragraph.strip() or paragraph.strip() not in found


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(numbered(page))
