"""Searches for good settings: `python -m imdbattn.search +search=residual n_trials=30`."""

import sys

from imdbattn.launch.command import run_command
from imdbattn.tools.search.command_line import search, split_others


def main() -> None:
    """Settings that conf/search.yaml does not have apply to all trials."""
    arguments, others = split_others(sys.argv[1:])
    run_command("search", lambda cfg: search(cfg, others), arguments)


if __name__ == "__main__":
    main()
