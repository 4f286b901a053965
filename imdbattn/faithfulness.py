"""Tests explanations of finished runs: `python -m imdbattn.faithfulness runs=<folder>`."""

from pathlib import Path
from typing import TYPE_CHECKING

from imdbattn.io.files import with_home
from imdbattn.launch.command import command
from imdbattn.runs.signals import StopOnSignals

if TYPE_CHECKING:
    from imdbattn.settings.command_settings import FaithfulnessSettings


@command("faithfulness")
def main(settings: "FaithfulnessSettings") -> None:
    """Prints the results and writes them into `out`."""
    out = with_home(settings.out or Path(settings.runs[0], "faithfulness"))
    from imdbattn.report.pages import print_reports, write_reports
    from imdbattn.tools.faithfulness.experiment import run_experiment
    from imdbattn.tools.faithfulness.page import report_of

    with StopOnSignals(f"stopped; the same command continues what is in {out}"):
        summaries = run_experiment(settings.runs, out, settings)
    reports = list(map(report_of, summaries))
    page = write_reports(reports, out)
    print_reports(reports)
    print(f"faithfulness: {page}")


if __name__ == "__main__":
    main()
