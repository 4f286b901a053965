"""The settings of imdbattn.dashboard, conf/dashboard.yaml."""

from imdbattn.settings.schema import Group, Text


class Dashboard(Group):
    entity: Text | None
    project: Text
    group: Text | None
    by: Text
    dry_run: bool
    out: Text
