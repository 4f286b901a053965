"""Searches for good settings: `python -m imdbattn.search +search=residual n_trials=30`."""

from imdbattn.launch.command import command
from imdbattn.tools.search.command_line import search, take_others


def main() -> None:
    """Settings that conf/search.yaml does not have apply to all trials."""
    others = take_others()
    command("search", "resume")(lambda cfg: search(cfg, others))()


if __name__ == "__main__":
    main()
