"""The students' sheet has all questions and commands of the exercises, and no answer."""

import re
import subprocess
import sys

import pytest

from tests.processes import ROOT

SCRIPT = ROOT / "docs" / "student_sheet.py"
PAGES = {"en": ROOT / "docs" / "exercises.md"} | {
    file.parent.name: file for file in sorted((ROOT / "docs").glob("*/exercises.md"))
}
BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^###? .*$", re.MULTILINE)


def sheet(language: str) -> str:
    command = [sys.executable, str(SCRIPT), language]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("language", PAGES)
def test_the_sheet_has_all_questions_and_commands_and_no_answer(language):
    page, found = PAGES[language].read_text("utf-8"), sheet(language)
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
