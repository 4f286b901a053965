"""Builds a W&B workspace for the runs of a project, or a report of their comparison:
`python -m imdbattn.dashboard entity=<user or team>`.
"""

from typing import TYPE_CHECKING, Any

from imdbattn.io.files import expanded, write_atomically
from imdbattn.launch.command import command

if TYPE_CHECKING:
    from imdbattn.tracking.settings import Dashboard


@command("dashboard", "out", "group", schema="tracking.settings.Dashboard")
def main(settings: "Dashboard") -> None:
    """Prints the address of what was built, or with dry_run=true the path of its JSON."""
    from imdbattn.tracking import workspace

    place = (settings.entity or "", settings.project, settings.group, settings.by)
    if settings.report:
        from imdbattn.api.comparison import compare

        built: Any = workspace.build_report(*place, compare(settings.runs).contents)
    else:
        built = workspace.build_workspace(*place)
    if settings.dry_run:
        write_atomically(expanded(settings.out), workspace.as_json(built))
        print(f"dashboard: {settings.out}")
    else:
        built.save()
        print(f"dashboard: {built.url}")


if __name__ == "__main__":
    main()
