"""Shows the attention of finished runs on an interactive page: `python -m imdbattn.explore
runs=<folder>`, or writes the page as one file: `out=page.html`.
"""

from typing import TYPE_CHECKING

from imdbattn.launch.command import command

if TYPE_CHECKING:
    from imdbattn.settings.command_settings import ExploreSettings


@command("explore")
def main(settings: "ExploreSettings") -> None:
    """Serves the page until it is stopped, or writes it."""
    if settings.out is not None:
        from imdbattn.tools.explore.runs import write_runs

        write_runs(settings)
    else:
        from imdbattn.tools.explore.server import serve

        serve(settings)


if __name__ == "__main__":
    main()
