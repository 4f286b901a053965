"""Compares finished runs: `python -m imdbattn.compare runs=<folder>`."""

from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.io.files import with_home
from imdbattn.launch.command import command

if TYPE_CHECKING:
    from imdbattn.settings.command_settings import CompareSettings


@command("compare")
def main(settings: "CompareSettings") -> None:
    """Prints the comparison of each test set and writes it into `out`."""
    # These imports (scipy, matplotlib) are slow; `--help` does not need them.
    from imdbattn.report.comparison_page import write_comparison

    out = settings.out or Path(settings.runs[0], "comparison")
    page, _ = write_comparison(settings, with_home(out))
    print(f"comparison: {page}")


if __name__ == "__main__":
    main()
