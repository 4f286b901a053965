"""Compares finished runs: `python -m imdbattn.compare runs=<folder>`."""

from pathlib import Path

from omegaconf import DictConfig

from imdbattn.io.files import expanded
from imdbattn.launch.command import command
from imdbattn.launch.hydra_config import typed_settings


@command("compare")
def main(cfg: DictConfig) -> None:
    """Prints the comparison of each test set and writes it into `out`."""
    # These imports (pydantic, scipy, matplotlib) are slow; `--help` does not need them.
    from imdbattn.settings.command_settings import CompareSettings

    settings = typed_settings(cfg, CompareSettings)
    from imdbattn.report.comparison_page import write_comparison

    out = settings.out or Path(settings.runs[0], "comparison")
    page, _ = write_comparison(settings, expanded(out))
    print(f"comparison: {page}")


if __name__ == "__main__":
    main()
