"""Builds a W&B workspace for the runs of a project: `python -m imdbattn.dashboard entity=<user or team>`."""

from typing import Any

from imdbattn.files import expanded, write_atomically
from imdbattn.settings.cli import command


@command("dashboard", "out", "group", schema="tracking.settings.Dashboard")
def main(settings: Any) -> None:
    """Prints the address of the workspace, or with dry_run=true the path of its JSON."""
    from imdbattn.tracking.dashboard import workspace

    built = workspace(settings)
    if settings.dry_run:  # the library has no public function for the JSON that it sends
        json = built._to_model().model_dump_json(by_alias=True, exclude_none=True, indent=2)
        write_atomically(expanded(settings.out), json + "\n")
        print(f"dashboard: {settings.out}")
    else:
        built.save()
        print(f"dashboard: {built.url}")


if __name__ == "__main__":
    main()
