"""Shows the attention of finished runs on an interactive page: `python -m imdbattn.explore
runs=<folder>`, or writes the page as one file: `out=page.html`.
"""

import sys
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from imdbattn.launch.command import command
from imdbattn.launch.hydra_config import validated
from imdbattn.launch.process import without_gc

if TYPE_CHECKING:
    from imdbattn.tools.explore.settings import Explore


@command("explore", "runs", "out", "data.vectors.path", "data.cache_dir")
def main(cfg: DictConfig) -> None:
    """Serves the page until it is stopped, or writes it."""
    from imdbattn.tools.explore.settings import Explore

    settings = validated(cfg, Explore)
    if settings.out is not None:
        write(settings)
        return
    with without_gc():
        from imdbattn.tools.explore.server import serve
    serve(settings)


def write(settings: "Explore") -> None:
    """Writes one file with all runs that a browser can compute, and prints what it has."""
    with without_gc():
        from imdbattn.tools.explore.onefile import lines_of
        from imdbattn.tools.explore.runs import Runs, write_runs

    runs = Runs(settings.runs, settings)
    facts = write_runs(runs, str(settings.out))
    for skipped in runs.skipped:
        print(f"skipped: {skipped['folder']} ({skipped['reason']})", file=sys.stderr)
    print(*lines_of(facts), sep="\n")
    print(f"written: {settings.out} ({facts['size'] / 1e6:.2f} MB)")


if __name__ == "__main__":
    main()
