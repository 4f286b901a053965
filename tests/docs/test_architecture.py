"""docs/architecture.md names every room, and the core imports no tool."""

import re

from ..processes import ROOT
from ..test_imports import GRAPH, part_of

PAGE = (ROOT / "docs" / "architecture.md").read_text()
CORE = {"io", "settings", "nn", "data", "tasks", "runs"}
ABOVE = {"launch", "report", "api"}


def test_the_page_has_a_paragraph_for_each_room():
    section = PAGE.partition("\n## Rooms\n")[2].partition("\n## ")[0]
    named = re.findall(r"^- \*\*(\w+)\*\*:", section, re.MULTILINE)
    folders = {file.parent.name for file in (ROOT / "imdbattn").glob("*/__init__.py")}
    assert sorted(named) == sorted(folders)


def test_the_core_imports_no_tool_no_report_and_nothing_of_the_command_line():
    """Only predictions of exported models, which are read by the room that writes them, do."""
    found = {
        (module, name)
        for module, names in GRAPH.items()
        if part_of(module) in CORE
        for name in names
        if part_of(name) in ABOVE or part_of(name).startswith("tools")
    }
    assert found == {("imdbattn.runs.apply", "imdbattn.tools.export.folder")}


def test_each_file_that_the_page_links_to_exists():
    for target in re.findall(r"\]\(\.\./([\w/.]+)\)", PAGE):
        assert (ROOT / target).exists(), target
