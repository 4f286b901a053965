"""Builds a W&B workspace for the runs of a project: `python -m imdbattn.dashboard entity=<user or team>`."""

from typing import Any

from imdbattn.files import expanded, write_atomically
from imdbattn.settings.cli import command


@command("dashboard", "out", "group", schema="Dashboard")
def main(settings: Any) -> None:
    """Prints the address of the workspace, or with dry_run=true the path of its JSON."""
    from imdbattn.tracking.dashboard import save, workspace

    built = workspace(settings)
    if not settings.dry_run:
        print(f"dashboard: {save(built, settings.timeout)}")
        return
    path = expanded(settings.out)
    # The library has no public function for the JSON that it sends.
    write_atomically(path, built._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n")
    print(f"dashboard: {path}")


if __name__ == "__main__":
    main()
