"""What docs/architecture.md links to exists; tests/test_imports.py reads its rooms."""

import re

from ..processes import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_each_file_that_the_page_links_to_exists():
    for target in re.findall(r"\]\(\.\./([\w/.]+)\)", PAGE):
        assert (ROOT / target).exists(), target
