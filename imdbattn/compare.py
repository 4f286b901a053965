"""Compares finished runs: `python -m imdbattn.compare runs=<folder>`."""

from pathlib import Path
from typing import Any

from imdbattn.errors import UserError
from imdbattn.files import expanded
from imdbattn.settings.cli import command


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


def listed(runs: Any) -> list[str]:
    """The folders in `runs`: one folder, a list, or text such as "[a,b]". Raises UserError if there is none."""
    if isinstance(runs, str) and runs.startswith("[") and runs.endswith("]") and not expanded(runs).exists():
        runs = [name.strip(" '\"") for name in runs[1:-1].split(",")]
    folders = [str(run) for run in (runs if isinstance(runs, list) else [runs]) if run not in (None, "")]
    if not folders:
        raise UserError("runs=<folder> is needed: a sweep's folder, a run's, or several as runs=[a,b]")
    return folders


if __name__ == "__main__":
    main()
