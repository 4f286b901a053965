"""Compares finished runs: `python -m imdbattn.compare runs=<folder>`."""

from pathlib import Path
from typing import Any

from imdbattn.files import expanded
from imdbattn.settings.cli import command


@command("compare", "runs", "out", "against", schema="comparison.settings.Compare")
def main(settings: Any) -> None:
    """Prints the comparison of each test set and writes it into `out`."""
    options = settings.model_dump(exclude={"runs", "out"})
    folders = settings.runs
    from imdbattn.comparison.report import write_comparison  # slow imports (scipy, matplotlib), not for `--help`

    page, _ = write_comparison(folders, expanded(settings.out or Path(folders[0], "comparison")), **options)
    print(f"comparison: {page}")


if __name__ == "__main__":
    main()
