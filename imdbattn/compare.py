"""Compares finished runs: `python -m imdbattn.compare runs=<folder>`."""

from pathlib import Path
from typing import Any

from imdbattn.io.files import expanded
from imdbattn.launch.command import command


@command("compare", "runs", "out", "against", schema="report.settings.Compare")
def main(settings: Any) -> None:
    """Prints the comparison of each test set and writes it into `out`."""
    options = settings.model_dump(exclude={"runs", "out"})
    folders = settings.runs
    # slow imports (scipy, matplotlib), not for `--help`
    from imdbattn.report.comparison_page import write_comparison

    page, _ = write_comparison(
        folders, expanded(settings.out or Path(folders[0], "comparison")), **options
    )
    print(f"comparison: {page}")


if __name__ == "__main__":
    main()
