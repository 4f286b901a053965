"""Compares finished runs: `python -m imdbattn.compare runs=<folder>`."""

from pathlib import Path
from typing import Any

from imdbattn.files import expanded
from imdbattn.settings.cli import command, listed


@command("compare", "runs", "out", "against", schema="Compare")
def main(settings: Any) -> None:
    """Prints the comparison of each test set and writes it into `out`."""
    options = settings.model_dump(exclude={"runs", "out"})
    folders = listed(settings.runs)
    out = expanded(settings.out or Path(folders[0], "comparison"))
    from imdbattn.comparison.compare import compare_sets  # slow imports (scipy, matplotlib) that `--help` does not need
    from imdbattn.comparison.report import report_of
    from imdbattn.pages import print_reports, write_reports

    reports = list(map(report_of, compare_sets(folders, **options)))
    page = write_reports(reports, out)
    print_reports(reports)
    print(f"comparison: {page}")


if __name__ == "__main__":
    main()
