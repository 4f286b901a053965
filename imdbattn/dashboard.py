"""Builds a W&B workspace for the runs of a project:
`python -m imdbattn.dashboard entity=<user or team>`.
"""

from typing import TYPE_CHECKING

from imdbattn.io.files import with_home, write_atomically
from imdbattn.launch.command import command

if TYPE_CHECKING:
    from imdbattn.settings.command_settings import DashboardSettings


@command("dashboard")
def main(settings: "DashboardSettings") -> None:
    """Prints the address of the workspace, or with dry_run=true the path of its JSON."""
    from imdbattn.tracking.workspace import as_json, build_workspace

    entity = settings.entity or ""
    built = build_workspace(entity, settings.project, settings.group, settings.by)
    if settings.dry_run:
        write_atomically(with_home(settings.out), as_json(built))
        print(f"dashboard: {settings.out}")
    else:
        built.save()
        print(f"dashboard: {built.url}")


if __name__ == "__main__":
    main()
