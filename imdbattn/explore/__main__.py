"""Shows the attention of finished runs on an interactive page: `python -m imdbattn.explore runs=<folder>`."""

from omegaconf import DictConfig

from imdbattn.settings.cli import command


@command("explore", "runs", "data.glove.path", "data.cache_dir")
def main(cfg: DictConfig) -> None:
    """Serves the page until it is stopped."""


if __name__ == "__main__":
    main()
