"""Shows the attention of finished runs on an interactive page: `python -m imdbattn.explore
runs=<folder>`, or writes the page as one file: `out=page.html`.
"""

from omegaconf import DictConfig

from imdbattn.launch.command import command
from imdbattn.launch.hydra_config import typed_settings


@command("explore")
def main(cfg: DictConfig) -> None:
    """Serves the page until it is stopped, or writes it."""
    from imdbattn.settings.command_settings import ExploreSettings

    settings = typed_settings(cfg, ExploreSettings)
    if settings.out is not None:
        from imdbattn.tools.explore.runs import write_runs

        write_runs(settings)
    else:
        from imdbattn.tools.explore.server import serve

        serve(settings)


if __name__ == "__main__":
    main()
