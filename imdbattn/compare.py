"""Compares finished runs: `python -m imdbattn.compare runs=<folder>`."""

from pathlib import Path
from typing import Any

from imdbattn.io.files import expanded
from imdbattn.launch.command import command


@command("compare", "runs", "out", "against", schema="report.settings.Compare")
def main(settings: Any) -> None:
    """Prints the comparison of each test set and writes it into `out`."""
    # slow imports (scipy, matplotlib), not for `--help`
    from imdbattn.report.comparison_page import write_comparison

    out = settings.out or Path(settings.runs[0], "comparison")
    page, _ = write_comparison(settings, expanded(out))
    print(f"comparison: {page}")


if __name__ == "__main__":
    main()
